"""`python -m slowtok.proxy` is the command `slowtok`."""

from slowtok.proxy.cli.main import main

if __name__ == "__main__":
    main()
