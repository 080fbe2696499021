# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The house keeps its own rules: what is in the tree is declared, documented, and free of this machine."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
LINK = ROOT / ".collections" / "ansible_collections" / "tenant" / "gpu"
SPDX = "SPDX-License-Identifier: GPL-3.0-or-later"
# Directories that hold no source: everything that begins with a dot (but for the two of configuration), and results.
CONFIGURATION = {".ci", ".config"}
RESULTS = {"results", "build", "__pycache__"}
# Formats without comments, data that is read as it stands, and the licence itself.
WITHOUT_HEADER = {"LICENSE"}
WITHOUT_COMMENTS = {".json", ".jsonl", ".md", ".csv", ".npz", ".pub"}
# What an installed collection consists of.
SHIPPED = {
    "CHANGELOG.rst", "CONTRIBUTING.md", "FILES.json", "LICENSE", "MANIFEST.json", "README.md", "ansible.cfg",
    "changelogs", "docs", "examples", "inventories", "meta", "playbooks", "plugins", "requirements.txt", "roles",
}  # fmt: skip
KIT = [
    *sorted((ROOT / "plugins/module_utils/_kit").rglob("*.py")),
    *(
        ROOT / "plugins/module_utils/_artifacts" / f"{name}.py"
        for name in ("__init__", "roster", "manifest", "structure")
    ),
]
MODULES = sorted(path.stem for path in (ROOT / "plugins/modules").glob("*.py") if path.stem != "__init__")
ROLES = sorted(path.parent.parent for path in (ROOT / "roles").glob("*/meta/main.yml")) or sorted(
    path for path in (ROOT / "roles").glob("*") if path.is_dir()
)


def source_files() -> list[Path]:
    """Every source file, found by walking (a fresh clone's files need not be known to git), never through a link."""
    found = []
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [name for name in folders if not ignored(name)]
        found += [Path(folder, name) for name in names if not Path(folder, name).is_symlink()]
    return [path for path in found if path.suffix not in {".pyc", ".gz", ".lock"}]


def ignored(folder: str) -> bool:
    return folder in RESULTS or (folder.startswith(".") and folder not in CONFIGURATION)


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def relative(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


def test_the_link_leads_to_the_clone() -> None:
    assert LINK.is_symlink()
    assert not os.path.isabs(os.readlink(LINK)), "an absolute link would break in another clone"
    assert LINK.resolve() == ROOT


def test_the_collection_resolves_by_name() -> None:
    listing = subprocess.run(
        [sys.executable, "-m", "ansible", "doc", "-t", "module", "-l", "tenant.gpu"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    listed = {line.split()[0] for line in listing.splitlines() if line.strip()}
    assert listed == {f"tenant.gpu.{name}" for name in MODULES}


def test_the_action_group_lists_every_module() -> None:
    runtime = load(ROOT / "meta/runtime.yml")
    assert runtime["requires_ansible"] == ">=2.19.0"
    assert runtime["action_groups"]["all"] == MODULES


@pytest.mark.parametrize("module", MODULES)
def test_each_module_is_the_documentation_of_an_action_plugin(module: str) -> None:
    assert (ROOT / "plugins/action" / f"{module}.py").is_file(), "every verb runs in-process on the controller"
    documentation = yaml.safe_load(documentation_of(ROOT / "plugins/modules" / f"{module}.py"))
    assert documentation["module"] == module


def documentation_of(path: Path) -> str:
    """The DOCUMENTATION string of a plugin file, without importing it."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "DOCUMENTATION":
            return str(ast.literal_eval(node.value))
    pytest.fail(f"{path.relative_to(ROOT)} has no DOCUMENTATION")


def test_each_action_plugin_has_its_module() -> None:
    actions = {path.stem for path in (ROOT / "plugins/action").glob("*.py") if path.stem != "__init__"}
    assert sorted(actions) == MODULES


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_a_role_declares_what_it_takes(role: Path) -> None:
    """The spec names each default and nothing else but required options; all of them begin with the role's name."""
    specs = load(role / "meta/argument_specs.yml")["argument_specs"]
    assert set(specs) == {path.stem for path in (role / "tasks").glob("*.yml") if path.stem in specs}
    options = specs["main"].get("options", {})
    defaults_file = role / "defaults/main.yml"
    defaults = (load(defaults_file) or {}) if defaults_file.is_file() else {}
    required = {name for name, option in options.items() if option.get("required")}
    assert set(options) - required == set(defaults)
    assert [name for name in options if not name.startswith(f"{role.name}_")] == []


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_every_option_of_a_role_is_described(role: Path) -> None:
    options = load(role / "meta/argument_specs.yml")["argument_specs"]["main"].get("options", {})
    assert [name for name, option in options.items() if not (option.get("description") and option.get("type"))] == []


def test_every_file_names_its_licence() -> None:
    bare = [
        path
        for path in source_files()
        if path.suffix not in WITHOUT_COMMENTS
        and path.name not in WITHOUT_HEADER
        and SPDX not in path.read_text(encoding="utf-8", errors="replace")[:400]
        and path.stat().st_size > 0
        and path.name not in {".gitignore", ".gitattributes", ".tenantignore"}
    ]
    assert relative(bare) == []


def test_no_file_knows_this_machine() -> None:
    """Absolute paths of homes and work folders of whoever wrote it; /root/… on a box is a platform's fact."""
    mine = re.compile(re.escape(str(ROOT)) + r"/|\.pyenv/versions/\d|/home/\w+/")
    knowing = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path in source_files()
        if path != Path(__file__).resolve()
        and (match := mine.search(path.read_text(encoding="utf-8", errors="replace")))
    ]
    assert knowing == []


@pytest.mark.parametrize("path", KIT, ids=lambda path: path.name)
def test_the_kit_is_python_3_8(path: Path) -> None:
    ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 8))


def test_the_kit_compiles_on_a_real_python_3_8(tmp_path: Path) -> None:
    python = python38()
    if python is None:
        pytest.skip("no Python 3.8 is here; its grammar was checked by ast")
    checked = "import sys; [compile(open(name, encoding='utf-8').read(), name, 'exec') for name in sys.argv[1:]]"
    done = subprocess.run([python, "-c", checked, *map(str, KIT)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def python38() -> str | None:
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    # Another user's folder of interpreters may be named and closed.
    found = root.glob("versions/3.8.*/bin/python3") if os.access(root / "versions", os.R_OK | os.X_OK) else []
    for python in [shutil.which("python3.8"), *map(str, found)]:
        if python and subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0:
            return python
    return None


def test_the_kit_stands_on_the_standard_library() -> None:
    foreign = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in KIT
        for name in absolute_imports(path)
        if name not in sys.stdlib_module_names
    }
    # torch is looked at where the image has it; the kit does without.
    assert {entry for entry in foreign if not entry.endswith(": torch")} == set()


def absolute_imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.split(".")[0])
    return names


def test_product_and_lab_do_not_import_each_other() -> None:
    crossing = [
        f"{path.relative_to(ROOT)} imports {name}"
        for folder, forbidden in (("plugins", {"lab", "tests"}), ("lab", {"ansible_collections", "plugins", "tests"}))
        for path in sorted((ROOT / folder).rglob("*.py"))
        for name in absolute_imports(path) & forbidden
    ]
    assert crossing == []


def test_an_archive_holds_what_a_user_needs_and_no_more(tmp_path: Path) -> None:
    galaxy = [sys.executable, "-m", "ansible", "galaxy", "collection", "build", "--output-path", str(tmp_path)]
    subprocess.run(galaxy, cwd=ROOT, capture_output=True, text=True, check=True)
    with tarfile.open(next(tmp_path.glob("tenant-gpu-*.tar.gz"))) as archive:
        names = archive.getnames()
    assert {name.split("/")[0] for name in names} - SHIPPED == set()
    assert [name for name in names if "__pycache__" in name or name.endswith(".pyc")] == []
    assert {"meta/runtime.yml", "plugins/module_utils/_kit/__main__.py"} <= set(names)
    assert [name for name in names if name.startswith("inventories/lab")] == []
