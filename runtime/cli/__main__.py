"""``python -m runtime.cli``: the same as ``busrl``, where no script is installed."""

from runtime.cli import main

if __name__ == "__main__":
    main()
