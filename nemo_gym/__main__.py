"""Run the command `gym` with a chosen interpreter: `python -m nemo_gym`."""

from nemo_gym.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
