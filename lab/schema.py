# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What is wrong with a request body, in the words of the Go validator that such platforms use."""

from __future__ import annotations

from typing import Any

from jsonschema import Draft202012Validator, ValidationError

Schema = dict[str, Any]

_JSON_NAMES = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer", float: "number"}


def violations(value: Any, schema: Schema) -> list[str]:
    """One line per violation, such as `$: additional properties 'x' not allowed`; empty when it fits."""
    found = sorted(Draft202012Validator(schema).iter_errors(value), key=lambda error: error.json_path)
    return list(dict.fromkeys(f"{error.json_path}: {_words(error)}" for error in found))


def _words(error: ValidationError) -> str:
    wanted: Any = error.validator_value
    schema: Any = error.schema
    instance: Any = error.instance
    match error.validator:
        case "additionalProperties":
            extra = sorted(set(instance) - set(schema.get("properties", {})))
            return f"additional properties {', '.join(map(repr, extra))} not allowed"
        case "required":
            missing = [name for name in wanted if name not in instance]
            return f"missing {'property' if len(missing) == 1 else 'properties'} {', '.join(map(repr, missing))}"
        case "type":
            names = wanted if isinstance(wanted, list) else [wanted]
            return f"got {_JSON_NAMES.get(type(instance), 'null')}, want {' or '.join(names)}"
        case "enum":
            return f"value must be one of {', '.join(map(repr, wanted))}"
        case "minimum" | "maximum" | "minLength" | "maxItems" | "minProperties":
            seen = instance if isinstance(instance, int) else len(instance)
            return f"{error.validator}: got {seen}, want {wanted}"
        case "pattern":
            return f"{instance!r} does not match pattern {wanted!r}"
        case _:
            return error.message
