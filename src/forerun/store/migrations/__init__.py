"""Migrations: how the tables of a store came to be; an append-only list, never edited."""
