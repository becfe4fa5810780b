"""Tell whether every node that is to have a daemon has one: NAMESPACE DAEMONSET...

Run by `helm test` in the image. A DaemonSet counts if all of its pods are up to date and available, a node if the
Lease of its name was renewed within the Lease's own time. Exit status 1 names each that does not count.
"""

import sys
import time
from datetime import datetime

import trio

from reactor.kube.client import ApiClient
from reactor.kube.credentials import credentials_of

WITHIN_SECONDS = 120


def is_fresh(lease):
    renewed = datetime.fromisoformat(lease["spec"]["renewTime"])
    return time.time() - renewed.timestamp() <= lease["spec"]["leaseDurationSeconds"]


async def listed(client, path):
    """Yield the objects of a collection page by page: all of a large cluster are more than one answer holds."""
    query = {"limit": "100"}
    while True:
        answer = await client.get(path, **query)
        for one in answer["items"]:
            yield one
        if not answer["metadata"].get("continue"):
            return
        query["continue"] = answer["metadata"]["continue"]


async def problems(client, namespace, names):
    """Yield what is missing now."""
    sets = {}
    for name in names:
        found = await client.get(f"/apis/apps/v1/namespaces/{namespace}/daemonsets/{name}")
        sets[found["metadata"]["uid"]] = name
        wanted = found["status"].get("desiredNumberScheduled", 0)
        if found["status"].get("observedGeneration", 0) < found["metadata"]["generation"]:
            yield f"DaemonSet {name}: its controller has not seen it yet"
        for what, key in (("up to date", "updatedNumberScheduled"), ("available", "numberAvailable")):
            if found["status"].get(key, 0) < wanted:
                yield f"DaemonSet {name}: {found['status'].get(key, 0)} of {wanted} pods are {what}"
    leases = listed(client, f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases")
    fresh = {one["metadata"]["name"] async for one in leases if is_fresh(one)}
    async for pod in listed(client, f"/api/v1/namespaces/{namespace}/pods"):
        owners = {one["uid"] for one in pod["metadata"].get("ownerReferences", [])}
        node = pod["spec"].get("nodeName")
        if owners & sets.keys() and node not in fresh:
            yield f"node {node}: pod {pod['metadata']['name']} keeps no Lease"


async def main(namespace, *names):
    client = ApiClient(credentials_of(None))
    until = time.monotonic() + WITHIN_SECONDS
    try:
        while True:
            found = [one async for one in problems(client, namespace, names)]
            if not found or time.monotonic() > until:
                break
            await trio.sleep(2)
    finally:
        client.close()
    for one in found:
        print(one)
    if not found:
        print(f"every node of {', '.join(names)} is guarded")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(trio.run(main, *sys.argv[1:]))
