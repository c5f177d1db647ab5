"""Server: a door that answers over REST what the command line answers with `--json`."""
