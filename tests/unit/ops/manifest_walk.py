"""Walk the manifests of `peer deploy kubernetes` as the cluster would: what is referenced exists, and fits.

`problems` returns a sentence for each thing that would keep a pod from starting, or give it more than it may have. It knows what
the schemas of the API do not: names that refer to other objects, files in volumes, and the words of commands.
"""

from __future__ import annotations

import base64
import os
import shlex
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from coordinator_free_bootstrap.graph import split_address
from coordinator_free_bootstrap.graph_file import parse_graph
from peer.identity.files import KeyFiles, load_key_pair

Manifest = dict[str, Any]
USER = 10001  # of the image
OUTSIDE = frozenset({"patients"})  # claims that the user brings
RESTRICTED_VOLUMES = {"configMap", "secret", "emptyDir", "persistentVolumeClaim"}  # of the Pod Security Standard
POD_LABELS = {"statefulset.kubernetes.io/pod-name", "apps.kubernetes.io/pod-index"}  # set by the cluster
UNITS = {"": 1.0, "m": 1e-3, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "k": 1e3, "M": 1e6, "G": 1e9}


def problems(documents: list[Manifest]) -> list[str]:
    """Return what is wrong with the manifests of a federation; [] if nothing is."""
    return list(Walk(documents).all())


class Walk:
    """The objects by kind and name, and the checks."""

    def __init__(self, documents: list[Manifest]) -> None:
        self.documents = documents
        self.objects = {(each["kind"], each["metadata"]["name"]): each for each in documents}
        self.set = self.kind("StatefulSet")[0]
        self.spec = self.set["spec"]
        self.template = self.spec["template"]
        self.pod = self.template["spec"]
        (self.peer,) = self.pod["containers"]
        first = self.spec.get("ordinals", {}).get("start", 0)
        self.ordinals = range(first, first + self.spec["replicas"])
        self.claims = {each["metadata"]["name"]: each for each in self.spec.get("volumeClaimTemplates", [])}
        self.volumes = {each["name"]: each for each in self.pod["volumes"]}

    def kind(self, kind: str) -> list[Manifest]:
        """Return the objects of a kind."""
        return [each for each in self.documents if each["kind"] == kind]

    def all(self) -> Iterator[str]:
        """Yield the problems."""
        yield from self._namespaces()
        yield from self._selectors()
        yield from self._service()
        yield from self._volumes()
        for container in (*self.pod.get("initContainers", []), self.peer):
            yield from self._mounts(container)
            yield from self._security(container)
            yield from self._resources(container)
        yield from self._pod_security()
        yield from self._ports()
        yield from self._command()
        yield from self._probes()
        yield from self._own_keys()
        yield from self._addresses()

    def _namespaces(self) -> Iterator[str]:
        if len(self.objects) != len(self.documents):
            yield "two objects of one kind have the same name"
        names = {each["metadata"]["name"] for each in self.kind("Namespace")}
        for (kind, name), each in self.objects.items():
            if kind != "Namespace" and each["metadata"].get("namespace") not in names:
                yield f"{kind} {name}: the namespace {each['metadata'].get('namespace')!r} does not exist"

    def _selectors(self) -> Iterator[str]:
        labels = self.template["metadata"]["labels"]
        found = {"StatefulSet": self.spec["selector"].get("matchLabels", {})}
        for each in self.kind("Service"):
            found[f"Service {each['metadata']['name']}"] = each["spec"]["selector"]
            pod = each["spec"]["selector"].get("statefulset.kubernetes.io/pod-name")
            if pod is not None and pod not in map(self._host_name, self.ordinals):
                yield f"Service {each['metadata']['name']}: the pod {pod} does not exist"
        for each in self.kind("PodDisruptionBudget"):
            found["PodDisruptionBudget"] = each["spec"]["selector"]["matchLabels"]
        for each in self.kind("NetworkPolicy"):
            found["NetworkPolicy"] = each["spec"]["podSelector"]["matchLabels"]
        for i, each in enumerate(self.pod.get("topologySpreadConstraints", [])):
            found[f"topologySpreadConstraints {i}"] = each["labelSelector"]["matchLabels"]
        for what, selector in found.items():
            missing = {k: v for k, v in selector.items() if k not in POD_LABELS and labels.get(k) != v}
            if missing or not selector:
                yield f"{what}: the pods do not have the labels {missing or 'of an empty selector'}"

    def _service(self) -> Iterator[str]:
        service = self.objects.get(("Service", self.spec["serviceName"]))
        if service is None:
            yield f"StatefulSet: serviceName {self.spec['serviceName']!r} does not exist"
            return
        if service["spec"].get("clusterIP") != "None":
            yield "the Service is not headless, so pods have no names"
        if service["spec"].get("publishNotReadyAddresses") is not True:
            yield "the Service hides pods that are not ready, and peers wait for each other before they are"

    def _volumes(self) -> Iterator[str]:
        sources = {"configMap": ("ConfigMap", "name"), "secret": ("Secret", "secretName")}
        for name, volume in self.volumes.items():
            for source, (kind, key) in sources.items():
                if source not in volume:
                    continue
                found = self.objects.get((kind, volume[source][key]))
                if found is None:
                    yield f"volume {name}: {kind} {volume[source][key]!r} does not exist"
                    continue
                keys = {*found.get("data", {}), *found.get("binaryData", {})}
                for item in volume[source].get("items", []):
                    if item["key"] not in keys:
                        yield f"volume {name}: {kind} {volume[source][key]!r} has no key {item['key']!r}"
            claim = volume.get("persistentVolumeClaim", {}).get("claimName")
            if claim is not None and claim not in OUTSIDE:
                yield f"volume {name}: the claim {claim!r} does not exist"
        containers = [*self.pod.get("initContainers", []), *self.pod["containers"]]
        used = {mount["name"] for container in containers for mount in container["volumeMounts"]}
        for name in (self.volumes.keys() | self.claims.keys()) - used:
            yield f"volume {name}: no container uses it"

    def _mounts(self, container: Manifest) -> Iterator[str]:
        paths: set[str] = set()
        for mount in container["volumeMounts"]:
            if mount["name"] not in self.volumes.keys() | self.claims.keys():
                yield f"{container['name']}: the volume {mount['name']!r} of a mount does not exist"
            if mount["mountPath"] in paths:
                yield f"{container['name']}: two mounts at {mount['mountPath']}"
            paths.add(mount["mountPath"])
            outer = [m["mountPath"] for m in container["volumeMounts"] if m.get("readOnly") and m is not mount]
            if any(PurePosixPath(mount["mountPath"]).is_relative_to(path) for path in outer):
                yield f"{container['name']}: {mount['mountPath']} is in a read-only mount, where no place for it can be made"
            for word in _variables(mount.get("subPathExpr", "")):
                if word not in {each["name"] for each in container.get("env", [])}:
                    yield f"{container['name']}: subPathExpr uses {word}, which env does not define"
        for each in container.get("env", []):
            field = each.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "")
            label = field.removeprefix("metadata.labels['").removesuffix("']")
            if (
                field.startswith("metadata.labels")
                and label not in self.template["metadata"]["labels"].keys() | POD_LABELS
            ):
                yield f"{container['name']}: env {each['name']}: the pods have no label {label!r}"

    def _security(self, container: Manifest) -> Iterator[str]:
        context = container.get("securityContext", {})
        if context.get("readOnlyRootFilesystem") is not True:
            yield f"{container['name']}: the root file system can be written"
        if context.get("allowPrivilegeEscalation") is not False:
            yield f"{container['name']}: privileges can grow"
        if context.get("capabilities") != {"drop": ["ALL"]}:
            yield f"{container['name']}: capabilities are left"
        if context.get("privileged"):
            yield f"{container['name']}: it is privileged"

    def _pod_security(self) -> Iterator[str]:
        context = self.pod.get("securityContext", {})
        if context.get("runAsNonRoot") is not True or context.get("runAsUser") != USER:
            yield f"the pod does not run as user {USER}"
        if context.get("fsGroup") != USER:
            yield f"the state volume does not belong to group {USER}"
        if context.get("seccompProfile") != {"type": "RuntimeDefault"}:
            yield "the pod has no seccomp profile"
        if self.pod.get("automountServiceAccountToken") is not False:
            yield "the pod gets a token of the API"
        for key in ("hostNetwork", "hostPID", "hostIPC"):
            if self.pod.get(key):
                yield f"the pod has {key}"
        for name, volume in self.volumes.items():
            if not RESTRICTED_VOLUMES & volume.keys():
                yield f"volume {name}: its kind is not allowed in a restricted pod"

    def _resources(self, container: Manifest) -> Iterator[str]:
        resources = container.get("resources", {})
        requests, limits = resources.get("requests", {}), resources.get("limits", {})
        if "memory" not in limits:
            yield f"{container['name']}: no memory limit"
        for name, amount in limits.items():
            if name in requests and _amount(requests[name]) > _amount(amount):
                yield f"{container['name']}: requests more {name} than its limit"
            if "/" in name and requests.get(name) != amount:
                yield f"{container['name']}: request and limit of {name} differ, which the API refuses"

    def _ports(self) -> Iterator[str]:
        ports = {each["name"]: each["containerPort"] for each in self.peer["ports"]}
        for service in self.kind("Service"):
            for each in service["spec"]["ports"]:
                target = each.get("targetPort", each["port"])
                if target not in (*ports, *ports.values()):
                    yield f"Service {service['metadata']['name']}: port {target} is none of the peer's"
        for policy in self.kind("NetworkPolicy"):
            allowed = {each["port"] for rule in policy["spec"]["ingress"] for each in rule["ports"]}
            for name, number in ports.items():
                if number not in allowed and name not in allowed:
                    yield f"NetworkPolicy: the peer's port {name} is closed"
        options = self._options()
        if ports.get("wire") != int(options["--listen"].rpartition(":")[2]):
            yield "the peer listens on another port than its port wire"
        if ports.get("metrics") != int(options["--metrics"].rpartition(":")[2]):
            yield "the peer serves metrics on another port than its port metrics"
        scraped = self.template["metadata"].get("annotations", {}).get("prometheus.io/port")
        if scraped != options["--metrics"].rpartition(":")[2]:
            yield f"the annotation for Prometheus names port {scraped}"

    def _options(self, ordinal: int | None = None) -> dict[str, str]:
        """Return the options of the peer's command, as a shell in a pod understands it."""
        words = _shell(self.peer["args"][0].replace("exec peer", "printf '%s\\n'"), self._host_name(ordinal))
        assert words[0] == "run"
        pairs = words[1:]
        return dict(zip(pairs[::2], pairs[1::2], strict=True))

    def _host_name(self, ordinal: int | None = None) -> str:
        return f"{self.set['metadata']['name']}-{self.ordinals[0] if ordinal is None else ordinal}"

    def _command(self) -> Iterator[str]:
        for ordinal in self.ordinals:
            if self._options(ordinal)["--id"] != str(ordinal):
                yield f"pod {self._host_name(ordinal)} runs peer {self._options(ordinal)['--id']}"
        options = self._options()
        for option, writable in (("--neighbors", False), ("--certs", False), ("--state-dir", True), ("--shard", False)):
            if option in options:
                yield from self._path(option, options[option], writable)
        folder = self.peer.get("workingDir")
        places = [PurePosixPath(mount["mountPath"]) for mount in self.peer["volumeMounts"]]
        if folder is not None and not any(place.is_relative_to(folder) for place in places):
            yield from self._path("workingDir", folder, False)
        temporary = {mount["name"] for mount in self.peer["volumeMounts"] if mount["mountPath"] == "/tmp"}
        if not any("emptyDir" in self.volumes.get(name, {}) for name in temporary):
            yield "the peer has no temporary folder"
        if ("--device" in options) != any("/" in name for name in self.peer["resources"]["limits"]):
            yield "the peer has a GPU and does not use it, or uses one and has none"

    def _path(self, option: str, path: str, writable: bool) -> Iterator[str]:
        mounts = [m for m in self.peer["volumeMounts"] if PurePosixPath(path).is_relative_to(m["mountPath"])]
        if not mounts:
            yield f"{option}: {path} is in no volume"
            return
        mount = mounts[0]
        if writable and (mount.get("readOnly") or mount["name"] not in self.claims):
            yield f"{option}: {path} is not in a volume that can be written and lasts"
        volume = self.volumes.get(mount["name"], {})
        if "configMap" in volume and path != mount["mountPath"]:
            found = self.objects.get(("ConfigMap", volume["configMap"]["name"]), {})
            if str(PurePosixPath(path).relative_to(mount["mountPath"])) not in found.get("data", {}):
                yield f"{option}: {path} is not in its ConfigMap"

    def _probes(self) -> Iterator[str]:
        for name in ("startupProbe", "readinessProbe", "livenessProbe"):
            if name not in self.peer:
                yield f"{name} is missing"
                continue
            command = self.peer[name]["exec"]["command"]
            if command[:2] != ["peer", "health"]:
                yield f"{name}: its command is {shlex.join(command)}"
            words = dict(zip(command[2::2], command[3::2], strict=True))
            if words.get("--certs") != self._options()["--certs"]:
                yield f"{name}: its keys are not those of the peer"
            if words.get("--state-dir") != self._options()["--state-dir"]:
                yield f"{name}: it does not know the peer's state, and a finished peer is started again"
            if (
                words.get("--address", "127.0.0.1:7400").rpartition(":")[2]
                != self._options()["--listen"].rpartition(":")[2]
            ):
                yield f"{name}: it asks another port than the peer's"
        period = self.peer.get("startupProbe", {})
        if period and period["periodSeconds"] * period["failureThreshold"] < 120:
            yield "startupProbe: less than 120 s to import PyTorch"

    def _own_keys(self) -> Iterator[str]:
        """Run the init container's script for each pod: which keys come out of the Secret, and whose are they?"""
        secrets = {name for name, volume in self.volumes.items() if "secret" in volume}
        if secrets & {mount["name"] for mount in self.peer["volumeMounts"]}:
            yield "the peer's container has the Secret with all keys"
        (script,) = [each for each in self.pod["initContainers"] if each["name"] == "own-key"]
        mounts = {mount["name"]: mount["mountPath"] for mount in script["volumeMounts"]}
        (secret,) = secrets
        if "keys" not in mounts or secret not in mounts:
            yield "the init container lacks a volume for the keys"
            return
        (content,) = [self.objects.get(("Secret", self.volumes[secret]["secret"]["secretName"]), {}).get("data", {})]
        graph = parse_graph(self._graph_text())
        for ordinal in self.ordinals:
            with tempfile.TemporaryDirectory() as name:
                source, target = Path(name, "secret"), Path(name, "keys")
                source.mkdir()
                target.mkdir()
                for key, value in content.items():
                    (source / key).write_bytes(base64.b64decode(value))
                text = script["args"][0].replace(mounts[secret], str(source)).replace(mounts["keys"], str(target))
                _shell(text, self._host_name(ordinal))
                found = sorted(path.name for path in target.iterdir() if path.stat().st_size)
                if found != [f"peer-{ordinal}.key", f"peer-{ordinal}.pem"]:
                    yield f"peer {ordinal} gets the keys {found}"
                    continue
                pair = load_key_pair(KeyFiles.of(target, ordinal))
                if pair.certificate.fingerprint not in graph.node(ordinal).pins:
                    yield f"peer {ordinal} gets a key that the graph file does not pin"

    def _graph_text(self) -> str:
        volume = next(v for v in self.volumes.values() if v["name"] == "graph")
        found = self.objects.get(("ConfigMap", volume["configMap"]["name"])) or self.kind("ConfigMap")[0]
        return str(next(iter(found["data"].values())))

    def _addresses(self) -> Iterator[str]:
        """Compare the addresses of the graph with the names that the cluster gives to pods."""
        graph = parse_graph(self._graph_text())
        namespace = self.set["metadata"]["namespace"]
        for ordinal in self.ordinals:
            if ordinal not in graph.ids:
                yield f"pod {self._host_name(ordinal)} is no peer of the graph"
                continue
            host, port = split_address(graph.node(ordinal).address)
            name = f"{self._host_name(ordinal)}.{self.spec['serviceName']}.{namespace}.svc.cluster.local"
            if host != name:
                yield f"peer {ordinal}: the graph says {host}, and its pod has the name {name}"
            if port != int(self._options()["--listen"].rpartition(":")[2]):
                yield f"peer {ordinal}: the graph says port {port}"


def _shell(text: str, host_name: str) -> list[str]:
    """Run a script as a container's shell would, and return the lines that it prints."""
    environment = {"PATH": os.environ["PATH"], "HOSTNAME": host_name}
    done = subprocess.run(["sh", "-c", text], check=False, env=environment, capture_output=True, text=True, timeout=30)
    return done.stdout.splitlines()


def _variables(text: str) -> list[str]:
    return [part.partition(")")[0] for part in text.split("$(")[1:]]


def _amount(quantity: str) -> float:
    number = quantity.rstrip("kKMGim")
    return float(number) * UNITS[quantity.removeprefix(number)]
