"""Options that are no more: the error that refuses one names what replaces it."""

from __future__ import annotations

from peer.runtime.local_options import IN_FILE, REPLACED

# "--option" of every verb, or "verb --option" where others keep it -> what to give instead
GONE = {
    "--traceback": "peer --traceback VERB",
    **{f"run --{name.replace('_', '-')}": f"--{new} {form}" for name, (new, form) in REPLACED.items()},
    "watch --host": "--listen [HOST:]PORT",
    "watch --port": "--listen [HOST:]PORT",
    "doctor --cert": "--certs DIR with peer-<id>.pem and peer-<id>.key",
    "doctor --key": "--certs DIR with peer-<id>.pem and peer-<id>.key",
    **{f"run --{name.replace('_', '-')}": f"--options FILE with {name} = VALUE in it" for name in IN_FILE},
}


def name_successor(error: Exception) -> None:
    """Change the message of an error for an unknown option, where the option is no more; leave other errors as they are."""
    option, context = getattr(error, "option_name", None), getattr(error, "ctx", None)
    if option is None or context is None or not hasattr(error, "possibilities"):
        return
    verb = context.command_path.partition(" ")[2]
    if instead := GONE.get(f"{verb} {option}", GONE.get(option)):
        error.message, error.possibilities = f"expected {instead}, got {option}, which is no more.", None  # type: ignore[attr-defined]
