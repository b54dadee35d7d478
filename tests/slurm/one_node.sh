#!/usr/bin/env bash
# A real Slurm of one node, from Debian's packages (slurm-wlm, munge), for tests/slurm/test_one_node.py.
#
#   one_node.sh start FOLDER   all that it writes lies in FOLDER; then: export SLURM_CONF=FOLDER/slurm.conf
#   one_node.sh stop FOLDER    ends what start began, by its process ids
#
# It needs root, as slurmd does, and no systemd: munge has a key and a socket of its own in FOLDER.
set -euo pipefail

do=${1:?start or stop}
folder=$(realpath -m "${2:?a folder}")

pids() {  # ours alone, and alive: a pid file may name what has taken the number since
    local name file
    for name in slurmd slurmctld munged; do
        file="$folder/$name.pid"
        [ -s "$file" ] || continue
        case "$(readlink "/proc/$(cat "$file")/exe" 2>/dev/null)" in */"$name"*) cat "$file" ;; esac  # Debian has slurmd-wlm
    done
    return 0
}

stop() {
    local pid
    for pid in $(pids); do kill "$pid" 2>/dev/null || true; done
    for _ in $(seq 50); do [ -z "$(pids)" ] && return 0; sleep 0.1; done
    for pid in $(pids); do kill -9 "$pid" 2>/dev/null || true; done
}

start() {
    local missing=()
    for each in munged slurmctld slurmd sbatch; do
        command -v "$each" >/dev/null || [ -x "/usr/sbin/$each" ] || missing+=("$each")
    done
    if [ ${#missing[@]} -gt 0 ]; then
        echo "expected Slurm and munge, got no ${missing[*]}: apt-get install slurm-wlm munge" >&2
        exit 2
    fi
    [ "$(id -u)" = 0 ] || { echo "expected root, which slurmd needs, got $(id -un)" >&2; exit 2; }
    PATH=$PATH:/usr/sbin
    mkdir -p "$folder/state" "$folder/spool"
    chmod 755 "$folder"
    (umask 077; head -c 1024 /dev/urandom >"$folder/munge.key")
    munged --force --key-file="$folder/munge.key" --socket="$folder/munge.socket" \
        --pid-file="$folder/munged.pid" --log-file="$folder/munged.log" --seed-file="$folder/munge.seed"
    local host cores mib port
    host=$(hostname -s)
    cores=$(nproc)
    mib=$(($(awk '/MemTotal/ {print $2}' /proc/meminfo) / 1024 / 2))
    port=$((20000 + $$ % 20000))
    cat >"$folder/slurm.conf" <<CONF
ClusterName=one
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmctldPort=$port
SlurmdPort=$((port + 1))
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket
CryptoType=crypto/munge
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,bf_interval=1
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
KillWait=5
NodeName=$host NodeAddr=127.0.0.1 CPUs=$cores RealMemory=$mib State=UNKNOWN
PartitionName=main Nodes=$host Default=YES MaxTime=60 State=UP
CONF
    export SLURM_CONF="$folder/slurm.conf"
    slurmctld -c
    slurmd -c
    for _ in $(seq 100); do
        if [ "$(sinfo --noheader --format=%t 2>/dev/null)" = idle ]; then return 0; fi
        sleep 0.2
    done
    echo "expected an idle node within 20 s, got: $(sinfo 2>&1 | tail -1)" >&2
    tail -n 5 "$folder"/*.log >&2 || true
    stop
    exit 1
}

case $do in
start) start ;;
stop) stop ;;
*) echo "expected start or stop, got $do" >&2; exit 2 ;;
esac
