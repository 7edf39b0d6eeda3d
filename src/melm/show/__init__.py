"""Things to look at: tables in the terminal, drawings, curves."""
