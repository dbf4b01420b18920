"""The nodes for which a night is planned."""

import os

from pipeline.flows.workers.address import ClusterAddress
from pipeline.flows.workers.cluster import connect
from pipeline.flows.workers.nodes import Node
from pipeline.log import Stages
from pipeline.settings import ClusterSettings


def planned_nodes(cluster: ClusterSettings, stages: Stages, *, verbose: bool = False) -> tuple[Node, ...]:
    """Return the nodes that cluster.nodes names, else those of a running cluster, else this machine."""
    import torch

    settings, here = cluster.nodes, os.cpu_count() or 1
    if settings.count is not None:
        return settings.count * (Node(settings.cpus or here, settings.gpus),)
    if not ClusterAddress.of(cluster).is_local:
        with connect(cluster, stages, verbose=verbose) as workers:
            return workers.nodes
    return (Node(here, torch.cuda.device_count()),)
