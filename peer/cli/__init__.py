"""The command line: `main` puts it together, one file per verb."""
