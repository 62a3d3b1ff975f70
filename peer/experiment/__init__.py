"""The papers' tables as files, and two ways to run them: real processes, or all peers simulated in one process."""
