"""`python -m forerun` is the forerun command."""

from forerun.cli import main

if __name__ == "__main__":
    main()
