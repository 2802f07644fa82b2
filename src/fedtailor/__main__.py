"""`python -m fedtailor` is the program `fedtailor`."""

from fedtailor.cli.app import main

if __name__ == "__main__":
    main()
