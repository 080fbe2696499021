#!/usr/bin/python
# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: instance_info
short_description: Look at the rental of a slot
version_added: 0.1.0
author: the tenant.gpu authors (@tenant-gpu)
description:
  - Reads what the slot is bound to from the ledger, and asks the platform how it is. Changes nothing.
options:
  api:
    description: The client in C(profile_api).
    type: str
    required: true
    aliases: [platform]
  id:
    description: Look at this instance, not at the one the slot is bound to.
    type: str
    default: ''
  verdict:
    description: Compute the meter verdict too, which asks the platform three things.
    type: bool
    default: false
extends_documentation_fragment:
  - tenant.gpu.home
  - tenant.gpu.attributes
seealso:
  - module: tenant.gpu.instance
"""

EXAMPLES = r"""
- name: Is the meter off
  tenant.gpu.instance_info:
    api: runpod
    id: pod_abc123
    verdict: true
"""

RETURN = r"""
bound:
  description: Whether the slot stands for an instance.
  returned: success
  type: bool
  sample: true
id:
  description: The instance; empty where the slot is unbound.
  returned: success
  type: str
  sample: pod_abc123
address:
  description: The host to connect to; empty where the platform names none.
  returned: success
  type: str
  sample: 203.0.113.7
ssh_common_args:
  description: What C(ansible_ssh_common_args) must be to connect to it; empty where the slot is unbound.
  returned: success
  type: str
  sample: -o HostKeyAlias=pod_abc123 -o StrictHostKeyChecking=accept-new
instance:
  description: The rental as the platform shows it; null where it does not answer or does not know it.
  returned: success
  type: dict
  sample: {id: pod_abc123, status: RUNNING, billing: "on", dead: false}
trouble:
  description: Why the platform did not show it.
  returned: when bound
  type: dict
  sample: {code: not_found, seen: "GET /v2/pods/pod_abc123: 404 pod not found"}
verdict:
  description: The meter verdict with its evidence, when asked for.
  returned: success
  type: dict
  sample: {state: "on", instance_id: pod_abc123}
cost:
  description: What the instance cost so far by the ledger; the amount is null where the rate is unknown.
  returned: success
  type: dict
  sample: {amount: "0.012300", currency: USD}
open:
  description: Every instance of this slot that is not proven off.
  returned: success
  type: list
  elements: str
  sample: [pod_abc123]
"""
