"""`python -m sandtable`: the command line, also where its script is not on the path."""

from sandtable.cli import main

main()
