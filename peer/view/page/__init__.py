"""The page of a run: a read-only server on this machine, static files, and one self-contained HTML file."""
