"""The command line: one module per verb; `main` registers them."""
