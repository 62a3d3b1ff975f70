"""The Python API: what `import peer` offers, one file per name. The command line is a thin layer over it."""
