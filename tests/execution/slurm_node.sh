#!/usr/bin/env bash
# Starts a Slurm of one node on this machine and prints the path of its configuration: slurm_node.sh FOLDER
# Needs Debian's packages slurm-wlm and munge, and root. Ends when `slurmctld` and `slurmd` of FOLDER/*.pid are killed.
set -euo pipefail
folder=$1
host=$(hostname -s)
mkdir -p "$folder/state" "$folder/spool"
read -r controller daemon < <(python3 -c 'import socket
ports = [socket.create_server(("", 0)) for _ in range(2)]
print(*(each.getsockname()[1] for each in ports))')
if ! pgrep -x munged > /dev/null; then
  mkdir -p /run/munge
  chown munge: /run/munge
  su -s /bin/sh munge -c munged
fi
cat > "$folder/slurm.conf" << CONF
ClusterName=one
SlurmctldHost=$host
SlurmUser=root
AuthType=auth/munge
AuthInfo=cred_expire=5
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldPort=$controller
SlurmdPort=$daemon
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
KillWait=5
SchedulerParameters=batch_sched_delay=1,sched_min_interval=100000
NodeName=$host CPUs=$(nproc) State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
slurmctld -f "$folder/slurm.conf"
slurmd -f "$folder/slurm.conf"
echo "$folder/slurm.conf"
