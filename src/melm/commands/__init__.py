"""The commands of the command line, each group in its file. Heavy imports happen inside the commands: `melm --help` is quick."""
