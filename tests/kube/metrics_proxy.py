"""Stands in for kube-rbac-proxy, which no package brings: by its flags, with its questions and its answers.

It runs in a pod of the chart's DaemonSet, by that pod's account: what the chart gives it is to be enough. The
order is kube-rbac-proxy's: path (404), whose token (401), whether they may (403), the upstream's answer.
"""

import argparse
import http.server
import json
import os
import ssl
import urllib.request

_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"


def reviewed(group, kind, spec):
    """Return the status of a review that the API server has made."""
    address = f"https://{os.environ['KUBERNETES_SERVICE_HOST']}:{os.environ['KUBERNETES_SERVICE_PORT']}"
    with open(f"{_ACCOUNT}/token") as file:
        token = file.read().strip()
    version = f"{group}/v1"
    body = {"apiVersion": version, "kind": kind, "spec": spec}
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    url = f"{address}/apis/{version}/{kind.lower()}s"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)  # noqa: S310 - of the server
    context = ssl.create_default_context(cafile=f"{_ACCOUNT}/ca.crt")
    with urllib.request.urlopen(request, context=context) as answer:  # noqa: S310
        return json.load(answer)["status"]


def main():
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for flag in ("secure-listen-address", "upstream", "allow-paths", "tls-cert-file", "tls-private-key-file"):
        parser.add_argument(f"--{flag}", required=True)
    flags = parser.parse_args()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            status, content = self.answer()
            self.send_response(status)
            self.end_headers()
            self.wfile.write(content)

        def answer(self):
            if self.path not in flags.allow_paths.split(","):
                return 404, b""
            _, _, token = self.headers.get("Authorization", "").partition("Bearer ")
            whose = reviewed("authentication.k8s.io", "TokenReview", {"token": token}) if token else {}
            if not whose.get("authenticated"):
                return 401, b""
            user = whose["user"]
            asked = {
                "user": user["username"],
                "groups": user["groups"],
                "nonResourceAttributes": {"path": self.path, "verb": "get"},
            }
            if not reviewed("authorization.k8s.io", "SubjectAccessReview", asked)["allowed"]:
                return 403, b""
            with urllib.request.urlopen(f"{flags.upstream.rstrip('/')}{self.path}") as upstream:  # noqa: S310
                return 200, upstream.read()

    host, _, port = flags.secure_listen_address.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(flags.tls_cert_file, flags.tls_private_key_file)
    server = http.server.ThreadingHTTPServer((host, int(port)), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.serve_forever()


main()
