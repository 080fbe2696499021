# Copyright (c) 2026 the tenant.gpu authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""RunPod: REST v2 and the GraphQL query `myself`.

Facts: the vendor's OpenAPI file 2.0.0 (2026-08) for paths, bodies and codes; vendor documentation and recordings of
2026-08 for prices, texts, ports and what survives. The lab rents no CPU pods, keeps no templates, and meters network
volumes by the second where RunPod meters them by the hour.
"""

from __future__ import annotations

from aiohttp import web

from lab.dialects.runpod.balance import graphql_handler
from lab.dialects.runpod.billing import Billing
from lab.dialects.runpod.catalogue import Catalogue
from lab.dialects.runpod.platform import PLATFORM
from lab.dialects.runpod.pods import Keys, Pods
from lab.dialects.runpod.problems import guard, problems
from lab.dialects.runpod.volumes import Volumes
from lab.market import Market
from lab.wire import Quota, RequestLog, outermost

__all__ = ["PLATFORM", "exports", "routes"]


def exports(url: str, key: str) -> dict[str, str]:
    return {"RUNPOD_API_BASE_URL": url, "RUNPOD_GRAPHQL_URL": f"{url}/graphql", "RUNPOD_API_KEY": key}


def routes(market: Market, requests: RequestLog) -> web.Application:
    """The HTTP application of one market."""
    app = web.Application(
        middlewares=[outermost(market, requests), problems, guard(market, Quota(market.options.rate_limit))]
    )
    keys, pods, volumes = Keys(market), Pods(market), Volumes(market)
    catalogue, billing = Catalogue(market), Billing(market)
    app.add_routes(
        [
            web.get("/v2/account/ssh-keys", keys.get_keys),
            web.put("/v2/account/ssh-keys", keys.put_keys),
            web.get("/v2/pods", pods.list_pods),
            web.post("/v2/pods", pods.create_pod),
            web.get("/v2/pods/{id}", pods.get_pod),
            web.patch("/v2/pods/{id}", pods.patch_pod),
            web.delete("/v2/pods/{id}", pods.delete_pod),
            web.post("/v2/pods/{id}/action", pods.act_on_pod),
            web.get("/v2/pods/{id}/logs", pods.pod_logs),
            web.get("/v2/catalog/gpus", catalogue.list_gpus),
            web.get("/v2/catalog/gpus/{id}", catalogue.get_gpu),
            web.get("/v2/catalog/cpus", catalogue.list_cpus),
            web.get("/v2/catalog/datacenters", catalogue.list_centres),
            web.get("/v2/network-volumes", volumes.list_volumes),
            web.post("/v2/network-volumes", volumes.create_volume),
            web.get("/v2/network-volumes/{id}", volumes.get_volume),
            web.patch("/v2/network-volumes/{id}", volumes.patch_volume),
            web.delete("/v2/network-volumes/{id}", volumes.delete_volume),
            web.get("/v2/billing/pods", billing.bill_pods),
            web.get("/v2/billing/network-volumes", billing.bill_volumes),
            web.post("/graphql", graphql_handler(market)),
        ]
    )
    return app
