"""Reports, tables and plots of a run."""
