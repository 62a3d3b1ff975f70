"""Removed options: the error that refuses one names what replaces it."""

from __future__ import annotations

from peer.runtime.local_options import IN_FILE, REPLACED

_OF_A_PROBLEM = {
    "--split": "--set run.split=NAME",
    "--peers": "--set peers=NUMBER",
    "--data-root": "--set data_root=FOLDER",
    "--download": "--set download=true",
}
_TASK = "--set run.task=NAME"

# "--option" of every verb, or "verb --option" where others keep it -> what to give instead
GONE = {
    "--traceback": "peer --traceback VERB",
    **{f"graph make --{key}": f"--kind KIND:{key}=NUMBER" for key in ("p", "m", "degree", "radius", "seed")},
    "graph make --force": "a new file for --out",
    "graph keys --algorithm": "peer graph keys ALGORITHM",
    **{f"{verb} --task": _TASK for verb in ("testbed", "graph make", "data split", "data show", "evaluate", "predict")},
    **{
        f"{verb} {option}": instead
        for verb in ("data split", "data show", "evaluate", "task check")
        for option, instead in _OF_A_PROBLEM.items()
    },
    "testbed --data-root": "--set data_root=FOLDER",
    "testbed --threads": "--set threads=NUMBER",
    "testbed --amp": "--set amp=bf16",
    "report --html": "--out FILE.html",
    "report --against": "peer report DIRECTORY AGAINST --out FILE.html",
    "export --to": "peer export DIRECTORY FILE",
    "experiment run --ray": "--backend simulated@ADDRESS",
    "experiment run --stacked": "--backend stacked",
    "experiment run --one-by-one": "--backend one-by-one",
    "experiment table --markdown": "--out FILE.md",
    "experiment table --save": "--out FOLDER",
    "experiment table --curves": "--out FOLDER",
    "chaos --every": "--for SECONDS:EVERY",
    "deploy swarm --constraint": "--node KEY==VALUE",
    "deploy swarm --page-port": "PAGE_PORT=NUMBER docker stack deploy ...",
    "deploy kubernetes --namespace": "--name NAMESPACE/NAME",
    "deploy kubernetes --node-selector": "--pod node=LABEL=VALUE",
    **{
        f"deploy kubernetes --{key}": f"--pod {key}=VALUE"
        for key in ("cpu", "memory", "storage", "gpus", "pull-secret")
    },
    **{f"deploy kubernetes --{key}-limit": f"--pod {key}=REQUEST:LIMIT" for key in ("cpu", "memory")},
    "deploy kubernetes --storage-class": "--pod storage=SIZE:CLASS",
    "deploy kubernetes --gpu-resource": "--pod gpus=RESOURCE:NUMBER",
    "deploy systemd --program": "/opt/peer/bin/peer, or a link, on the devices",
    "deploy systemd --memory": "MemoryMax=VALUE in a drop-in, with systemctl edit coordinator-free",
    "deploy keys --keys": "peer deploy keys GRAPH.JSON KEYS",
    "data split --json": "peer data show FOLDER --json",
    "data show --shards": "peer data show FOLDER",
    "evaluate --model": "peer evaluate MODEL",
    "predict --model": "peer predict MODEL INPUT",
    "predict --input": "peer predict MODEL INPUT",
    **{f"run --{name.replace('_', '-')}": f"--{new} {form}" for name, (new, form) in REPLACED.items()},
    "status --watch": "peer watch GRAPH.JSON --terminal",
    "keygen --days": "a certificate of 730 days, renewed with peer graph pin --rotate",
    "watch --host": "--listen [HOST:]PORT",
    "watch --port": "--listen [HOST:]PORT",
    "doctor --cert": "--certs DIR with peer-<id>.pem and peer-<id>.key",
    "doctor --key": "--certs DIR with peer-<id>.pem and peer-<id>.key",
    **{f"run --{name.replace('_', '-')}": f"--options FILE with {name} = VALUE in it" for name in IN_FILE},
}


GONE_VERBS = {"data shard": "peer data split --peer ID"}
