"""`gradwire-server` and `python -m gradwire_server`."""

from __future__ import annotations

from gradwire_server import raw_lines, signals


def main() -> None:
    """Run the command; signals are seen to before the rest is imported."""
    signals.hold()
    raw_lines.silence()
    from gradwire_server import command  # noqa: PLC0415 - takes long

    command.main()


if __name__ == "__main__":
    main()
