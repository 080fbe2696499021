# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The base of every verb: arguments checked against the module's own documentation, errors in one shape."""

from __future__ import annotations

import importlib
import os
import typing as t
from pathlib import Path

import yaml
from ansible.plugins.action import ActionBase

from ansible_collections.tenant.gpu.plugins.module_utils._platforms import client
from ansible_collections.tenant.gpu.plugins.module_utils._platforms.base import Platform, PlatformError

from .errors import Refused, as_result, printable, typed

_HERE = "ansible_collections.tenant.gpu.plugins"
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_SPEC_KEYS = ("type", "required", "default", "choices", "elements", "aliases")


def argument_spec(module_name: str) -> dict[str, t.Any]:
    """The argument spec of a module, read from its documentation, so that it stands in one place only."""
    module = Path(__file__).parent.parent / "modules" / f"{module_name}.py"
    documentation = _documentation(module.read_text(encoding="utf-8"))
    options = dict(documentation.get("options") or {})
    for fragment in documentation.get("extends_documentation_fragment") or []:
        name, _, part = fragment.removeprefix("tenant.gpu.").partition(".")
        kind = importlib.import_module(f"{_HERE}.doc_fragments.{name}").ModuleDocFragment
        text = getattr(kind, part.upper() or "DOCUMENTATION")
        options |= yaml.load(text, Loader=_LOADER).get("options") or {}
    return {option: _entry(text) for option, text in options.items()}


def _documentation(source: str) -> dict[str, t.Any]:
    """The DOCUMENTATION of a module file, without importing it."""
    text = source.split('DOCUMENTATION = r"""', 1)[1].split('"""', 1)[0]
    return t.cast("dict[str, t.Any]", yaml.load(text, Loader=_LOADER))


def _entry(text: dict[str, t.Any]) -> dict[str, t.Any]:
    entry = {key: text[key] for key in _SPEC_KEYS if key in text}
    if "suboptions" in text:
        entry["options"] = {name: _entry(inner) for name, inner in text["suboptions"].items()}
    return entry


class TenantAction(ActionBase):
    """A verb. Subclasses name their ``secret_options`` and write ``perform``."""

    TRANSFERS_FILES = False
    _supports_check_mode = True
    _supports_async = False
    secret_options: t.ClassVar[frozenset[str]] = frozenset()

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        super().run(tmp, task_vars)
        del tmp
        name = self._task.action.rsplit(".", 1)[-1]
        spec = argument_spec(name)
        for option in self.secret_options:
            spec[option]["no_log"] = True
        _, args = self.validate_argument_spec(argument_spec=spec)
        self.task_vars = task_vars or {}
        self.slot = str(self.task_vars.get("inventory_hostname", "localhost"))
        try:
            return self.perform(plain(args))
        except (Refused, PlatformError) as problem:
            facts = getattr(problem, "facts", None)
            return as_result(problem.code, problem.seen, problem.means, problem.do, facts)

    def perform(self, args: dict[str, t.Any]) -> dict[str, t.Any]:
        raise NotImplementedError

    @property
    def check(self) -> bool:
        return bool(self._task.check_mode)

    def say(self, text: str) -> None:
        """One calm line on the screen; the host's name stands in front."""
        self._display.display(f"  {self.slot}  {typed(printable(text))}")

    def platform(self, api: str) -> Platform:
        """The client, with keys and base URLs from the task's environment over the controller's own."""
        return client(api, self.environ())

    def environ(self) -> dict[str, str]:
        """The controller's environment, and the task's over it."""
        given: dict[str, str] = {}
        for block in self._task.environment or []:
            templated = self._templar.template(block)
            if isinstance(templated, dict):
                given |= {str(key): str(value) for key, value in templated.items()}
        return {**os.environ, **given}


def difference(changed: bool, before: str, after: str) -> dict[str, dict[str, str]]:
    """The ``diff`` of a result, where something changed; each side is lines of text."""
    return {"diff": {"before": before, "after": after}} if changed else {}


def plain(value: t.Any) -> t.Any:
    """Ansible's tagged values as ordinary ones, for libraries that are particular about types."""
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    if isinstance(value, bool) or value is None:
        return value
    for kind in (int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return value
