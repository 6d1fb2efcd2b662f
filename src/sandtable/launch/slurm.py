"""srun, Slurm's launcher: it starts a command as many tasks, and the tasks are ranks or start them.

    srun --nodes 4 --ntasks-per-node 8 python train.py                      # every task is a rank
    srun --nodes 4 --ntasks-per-node 1 torchrun --nnodes 4 ... train.py     # every task is the torchrun of a node

Numbers that srun takes from an allocation (`sbatch --nodes 4 --ntasks-per-node 8`) are not in the command. They come
from the inner launcher, or else from the cluster: one task per GPU of each node.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sandtable.errors import LaunchError
from sandtable.launch.environment import FixedEnvironment, LauncherEnvironment, LayeredEnvironment, RankPlace
from sandtable.launch.options import OptionTable, ParsedOptions, option_names, parse_count
from sandtable.launch.plan import LaunchPlan

__all__ = ["SlurmEnvironment", "nested_plan", "parse_srun"]

_VALUES = option_names(
    """
    account acctg_freq bb bbf bcast begin chdir cluster_constraint clusters comment constraint container container_env
    container_id container_image container_mounts container_name container_workdir context core_spec cores_per_socket
    cpu_bind cpu_freq cpus_per_gpu cpus_per_task deadline delay_boot dependency distribution epilog error exclude export
    export_file extra extra_node_info gid gpu_bind gpu_freq gpus gpus_per_node gpus_per_socket gpus_per_task gres
    gres_flags hint input job_name jobid licenses mail_type mail_user mcs_label mem mem_bind mem_per_cpu mem_per_gpu
    mincpus mpi msg_timeout network nodefile nodelist nodes ntasks ntasks_per_core ntasks_per_gpu ntasks_per_node
    ntasks_per_socket open_mode output partition power priority profile prolog qos relative reservation signal
    slurmd_debug sockets_per_node switches task_epilog task_prolog thread_spec threads threads_per_core time time_min
    tmp tree_width tres_bind tres_per_task uid wait wckey
    """
)

_SWITCHES = option_names(
    """
    container_entrypoint container_mount_home container_readonly container_remap_root container_writable contiguous
    disable_status exact hold interactive label multi_prog no_allocate no_container_entrypoint no_container_mount_home
    no_container_remap_root no_kill overcommit overlap oversubscribe preserve_env quiet reboot spread_job unbuffered
    use_min_nodes verbose whole
    """
)

_SHORT = {
    "-A": "account",
    "-b": "begin",
    "-B": "extra_node_info",
    "-c": "cpus_per_task",
    "-C": "constraint",
    "-d": "dependency",
    "-D": "chdir",
    "-e": "error",
    "-E": "preserve_env",
    "-F": "nodefile",
    "-G": "gpus",
    "-H": "hold",
    "-i": "input",
    "-I": "immediate",
    "-J": "job_name",
    "-k": "no_kill",
    "-K": "kill_on_bad_exit",
    "-l": "label",
    "-L": "licenses",
    "-m": "distribution",
    "-M": "clusters",
    "-n": "ntasks",
    "-N": "nodes",
    "-o": "output",
    "-O": "overcommit",
    "-p": "partition",
    "-q": "qos",
    "-Q": "quiet",
    "-r": "relative",
    "-s": "oversubscribe",
    "-S": "core_spec",
    "-t": "time",
    "-T": "threads",
    "-u": "unbuffered",
    "-v": "verbose",
    "-w": "nodelist",
    "-W": "wait",
    "-x": "exclude",
    "-X": "disable_status",
    "-Z": "no_allocate",
}

_TABLE = OptionTable(
    launcher="srun",
    values=_VALUES,
    switches=_SWITCHES,
    optional=option_names("exclusive immediate kill_on_bad_exit nice propagate pty resv_ports"),
    short=_SHORT,
    may_shorten=True,
)

_JOB_ID = "1"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmEnvironment(LauncherEnvironment):
    """Slurm's variables for a task: a rank, or with `is_agent` the launcher that starts the ranks of a node."""

    is_agent: bool
    job_name: str
    requested: tuple[tuple[str, str], ...] = ()
    """Variables that only repeat an option, such as SLURM_CPUS_PER_TASK."""

    def variables(self, place: RankPlace) -> dict[str, str]:
        tasks_per_node = 1 if self.is_agent else place.ranks_per_node
        local_task = 0 if self.is_agent else place.local_rank
        num_tasks, first_task = tasks_per_node * place.num_nodes, tasks_per_node * place.node
        names = "node0" if place.num_nodes == 1 else f"node[0-{place.num_nodes - 1}]"
        times = f"(x{place.num_nodes})" if place.num_nodes > 1 else ""
        values: dict[str, str | int] = {
            "SLURM_PROCID": first_task + local_task,
            "SLURM_LOCALID": local_task,
            "SLURM_NODEID": place.node,
            "SLURM_NTASKS": num_tasks,
            "SLURM_NPROCS": num_tasks,
            "SLURM_NNODES": place.num_nodes,
            "SLURM_TASKS_PER_NODE": f"{tasks_per_node}{times}",
            "SLURM_GTIDS": ",".join(str(first_task + task) for task in range(tasks_per_node)),
            "SLURM_NODELIST": names,
            "SLURMD_NODENAME": f"node{place.node}",
            "SLURM_TOPOLOGY_ADDR": f"node{place.node}",
            "SLURM_JOB_ID": _JOB_ID,
            "SLURM_JOBID": _JOB_ID,
            "SLURM_JOB_NAME": self.job_name,
            "SLURM_JOB_NODELIST": names,
            "SLURM_JOB_NUM_NODES": place.num_nodes,
            "SLURM_STEP_ID": 0,
            "SLURM_STEPID": 0,
            "SLURM_STEP_NODELIST": names,
            "SLURM_STEP_NUM_NODES": place.num_nodes,
            "SLURM_STEP_NUM_TASKS": num_tasks,
            "SLURM_STEP_TASKS_PER_NODE": f"{tasks_per_node}{times}",
            "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1",
            "SLURM_SRUN_COMM_HOST": "127.0.0.1",
            "SLURM_SUBMIT_DIR": os.getcwd(),
            "SLURM_WORKING_CLUSTER": "sandtable",
        }
        return {name: str(value) for name, value in values.items()} | dict(self.requested)


def parse_srun(words: Sequence[str], parse_inner: Callable[[Sequence[str]], LaunchPlan]) -> LaunchPlan:
    """Read the words after `srun`; `parse_inner` reads the command that its tasks run."""
    parsed = _TABLE.parse(words)
    parsed.reject({"multi_prog": "its tasks run different commands; rehearse one command"})
    command, _ = parsed.require_script()
    inner = parse_inner(parsed.rest)
    num_nodes, tasks_per_node, num_tasks = _tasks(parsed)
    environment = SlurmEnvironment(
        is_agent=not inner.is_plain,
        job_name=parsed.get("job_name") or os.path.basename(command),
        requested=tuple(_requested(parsed)),
    )
    plan = nested_plan(inner, launcher="srun", num_nodes=num_nodes, tasks_per_node=tasks_per_node, num_tasks=num_tasks)
    layers = (environment, FixedEnvironment(_exported(parsed)), inner.environment)
    return replace(plan, environment=LayeredEnvironment(layers))


def nested_plan(
    inner: LaunchPlan, *, launcher: str, num_nodes: int | None, tasks_per_node: int | None, num_tasks: int | None
) -> LaunchPlan:
    """Combine a launcher that starts tasks with what each task runs: a rank, or the launcher of a node's ranks."""
    if inner.is_plain:
        return replace(
            inner,
            launcher=launcher,
            is_plain=False,
            num_nodes=num_nodes,
            ranks_per_node=tasks_per_node,
            num_ranks=num_tasks,
        )
    if tasks_per_node not in (None, 1):
        raise LaunchError(
            f"{launcher} must start {inner.launcher} once per node, but starts it {tasks_per_node} times; "
            f"{inner.launcher} starts the node's ranks itself: give one task per node"
        )
    num_agents = num_tasks if num_nodes is None else num_nodes
    if num_agents is not None and inner.num_nodes not in (None, num_agents):
        raise LaunchError(
            f"{inner.launcher} must run on all the nodes that {launcher} starts it on, but says "
            f"{inner.num_nodes} where {launcher} says {num_agents}; make the two agree"
        )
    return inner if num_agents is None else replace(inner, num_nodes=num_agents)


def _tasks(parsed: ParsedOptions) -> tuple[int | None, int | None, int | None]:
    """Return the number of nodes, of tasks per node and of all tasks, as far as the options give them."""
    nodes = parsed.get("nodes")
    num_nodes = None if nodes is None else parse_count(nodes.split("-")[-1], "srun --nodes")
    tasks_per_node, num_tasks = parsed.count("ntasks_per_node"), parsed.count("ntasks")
    per_gpu, gpus = parsed.count("ntasks_per_gpu"), _gpus_per_node(parsed)
    if tasks_per_node is None and per_gpu is not None and gpus is not None:
        tasks_per_node = per_gpu * gpus
    if num_tasks is not None and num_nodes is not None and tasks_per_node is not None:
        tasks_per_node = None  # with --ntasks, Slurm takes --ntasks-per-node as the most a node may get
    return num_nodes, tasks_per_node, num_tasks


def _gpus_per_node(parsed: ParsedOptions) -> int | None:
    """Return the GPUs of a node: 8 in `--gpus-per-node a100:8` and in `--gres gpu:a100:8`."""
    for text in (parsed.get("gpus_per_node"), parsed.get("gres")):
        last = (text or "").split(",")[0].split(":")[-1]
        if last.isdigit():
            return int(last)
    return None


def _requested(parsed: ParsedOptions) -> list[tuple[str, str]]:
    """Return the variables in which Slurm repeats options."""
    gpus = _gpus_per_node(parsed)
    pairs = [
        ("SLURM_NTASKS_PER_NODE", parsed.get("ntasks_per_node")),
        ("SLURM_CPUS_PER_TASK", parsed.get("cpus_per_task")),
        ("SLURM_GPUS_PER_NODE", parsed.get("gpus_per_node")),
        ("SLURM_GPUS_PER_TASK", parsed.get("gpus_per_task")),
        ("SLURM_JOB_PARTITION", parsed.get("partition")),
        ("SLURM_JOB_ACCOUNT", parsed.get("account")),
        ("SLURM_GPUS_ON_NODE", None if gpus is None else str(gpus)),
    ]
    return [(name, value) for name, value in pairs if value is not None]


def _exported(parsed: ParsedOptions) -> dict[str, str]:
    """Return the variables that `--export=ALL,NAME=value` sets."""
    parts = (parsed.get("export") or "").split(",")
    return dict(part.split("=", 1) for part in parts if "=" in part)
