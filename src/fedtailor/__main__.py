"""`python -m fedtailor` is the program `fedtailor`."""

from fedtailor.cli.program import main

if __name__ == "__main__":
    main()
