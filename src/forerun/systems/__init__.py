"""Systems: published methods as recipes of this package's mechanisms."""
