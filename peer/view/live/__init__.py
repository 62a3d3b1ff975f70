"""What shows a run while it lasts: questions to peers, tables and bars in a terminal."""
