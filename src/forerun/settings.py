"""Settings: one table of names, defaults and help.

Default < file (`~/.config/forerun.toml` or FORERUN_CONFIG) < environment (FORERUN_NAME) < flag.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from forerun import packaged
from forerun.errors import RequestError, UnknownNameError, one_of

Value = str | int | float | bool
DEFAULT_FILE = "~/.config/forerun.toml"
_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off", "")


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting; its kind is that of its default."""

    name: str
    default: Value
    help: str
    choices: Sequence[str] = ()

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return f"FORERUN_{self.name.upper()}"


# `settings.json` has them all.
SETTINGS: tuple[Setting, ...] = tuple(
    Setting(**row) for row in packaged.table(__file__, "settings.json")
)
_BY_NAME: Mapping[str, Setting] = {setting.name: setting for setting in SETTINGS}


@dataclass(frozen=True)
class Settings:
    """The settings in force: values by name, and for each where it was set."""

    values: Mapping[str, Value]
    origins: Mapping[str, str]

    def __getitem__(self, name: str) -> Value:
        return self.values[name]

    def text(self, name: str) -> str:
        """Return a setting as text."""
        return str(self.values[name])

    def number(self, name: str) -> float:
        """Return a number setting."""
        return float(self.values[name])

    @property
    def catalog_files(self) -> tuple[str, ...]:
        """The user's own catalogue files."""
        return tuple(filter(None, self.text("catalog").split(os.pathsep)))


def load_settings(
    flags: Mapping[str, Value | None] | None = None, environ: Mapping[str, str] | None = None
) -> Settings:
    """Return the settings in force; a flag that is None was not given. Raises RequestError."""
    environ = os.environ if environ is None else environ
    values: dict[str, Value] = {s.name: s.default for s in SETTINGS}
    origins = dict.fromkeys(values, "default")
    named = environ.get("FORERUN_CONFIG")
    path = Path(named) if named else Path(DEFAULT_FILE).expanduser()
    for name, value in _from_file(path, required=bool(named)).items():
        values[name] = checked(_BY_NAME[name], value, f"setting {name} in {path}")
        origins[name] = str(path)
    for setting in SETTINGS:
        raw = environ.get(setting.variable)
        if raw is not None:
            values[setting.name] = checked(setting, raw, f"the variable {setting.variable}")
            origins[setting.name] = setting.variable
    for name, flag in (flags or {}).items():
        if flag is not None:
            values[name] = checked(_BY_NAME[name], flag, f"--{name.replace('_', '-')}")
            origins[name] = "flag"
    return Settings(values, origins)


def _from_file(path: Path, required: bool) -> dict[str, object]:
    """Return the file's settings by name; no file is no settings unless it was named."""
    if not path.exists() and not required:
        return {}
    import tomllib

    asked = f"reading settings from {path}"
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        found_words = getattr(error, "strerror", None) or "it is not text in UTF-8"
        raise RequestError(asked, str(found_words), "set FORERUN_CONFIG to a TOML file") from None
    except tomllib.TOMLDecodeError as error:
        raise RequestError(asked, f"not TOML: {error}", "correct the file") from None
    plain = {name.replace("-", "_"): value for name, value in found.items()}
    for name in plain:
        if name not in _BY_NAME:
            raise UnknownNameError("setting", name, _BY_NAME, f"(in {path})")
    return plain


def checked(setting: Setting, value: object, asked: str) -> Value:
    """Return a value as the setting's kind. Raises RequestError where it cannot be."""
    text = str(value).strip()
    if "\0" in text:
        raise RequestError(asked, "it holds a NUL", "take it out")
    if isinstance(value, list):
        text = os.pathsep.join(map(str, value))
    if isinstance(setting.default, bool):
        if text.lower() not in _TRUE + _FALSE:
            raise RequestError(f"{asked} {text!r}", "neither true nor false", "write true or false")
        return text.lower() in _TRUE
    if isinstance(setting.default, int | float):
        whole = isinstance(setting.default, int)
        with suppress(ValueError, OverflowError):
            if not whole or float(text).is_integer():
                return int(float(text)) if whole else float(text)
        kind = "a whole number" if whole else "a number"
        next_step = f"write {kind} such as {setting.default}"
        raise RequestError(f"{asked} {text!r}", f"not {kind}", next_step)
    if setting.choices and text not in setting.choices:
        raise RequestError(f"{asked} {text!r}", "no such value", one_of(text, setting.choices))
    return text
