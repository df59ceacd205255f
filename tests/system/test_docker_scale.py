# SPDX-License-Identifier: Apache-2.0
"""Many containers, and what is not to be waited for: no times are looked at here (see tests/bench/docker)."""

import os
import subprocess
import sys

import pytest

import harness
from conftest import ended
from engine import running_engine
from harness import Child, read, wait_for, write
from jobs import output

sys.path.insert(0, f'{harness.CHECKOUT}/tests/bench')
# pylint: disable=wrong-import-position
from dockerapi import StallingProxy  # noqa: E402
from dockerways import come_to_rest  # noqa: E402

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]


@pytest.fixture(scope='module', name='engine')
def _engine():
    with running_engine() as engine:
        yield engine


@pytest.fixture(name='proxy')
def _proxy(engine, workdir):
    """Before the engine: counts requests, and lets pulls hang."""
    proxy = StallingProxy(f'{workdir}/engine.sock', engine.socket)
    yield proxy
    proxy.stop()


@pytest.fixture(name='docker')
def _docker(proxy, mount, engine):  # the mount ends before the proxy
    """docker(option=value, …): a mount whose workspaces are containers; `at` is where it finds the engine."""
    del proxy

    def make(at=None, **opts):
        d = mount.prepare()
        d.source = 'docker:base:1'
        d.opts.update(basedir=d.basedir, **opts)
        d.set_config(f'[backend docker]\nhost = {at or engine.host}\n')
        return d.start()
    yield make
    ended(mount, engine)


def sessions(daemon, n, name='a'):
    return [daemon.session(f'u{i % 5}/{name}{i}/s1') for i in range(n)]


def in_parallel(daemon, action, things):
    """Calls action(thing) for all of them at once."""
    for child in [daemon.child(lambda t=thing: action(t)) for thing in things]:
        child.result(200)


def up(s):
    """Its container runs, and has run a job."""
    os.listdir(s.path)
    os.mkdir(f'{s.inner}/jobs/j')
    write(f'{s.inner}/jobs/j/cmd', 'cat /etc/passwd')
    assert read(f'{s.inner}/jobs/j/exit') == '0\n'


def threads(daemon):
    return len(os.listdir(f'/proc/{daemon.pid}/task'))


# ── what starts no container ────────────────────────────────────────────────────────────────

def test_tar_of_closed_workspaces_starts_no_container(docker, engine, proxy):
    d = docker(f'unix://{proxy.path}', provision='jobs')
    for s in sessions(d, 50):
        write(s / 'f', s.names)
        s.ctl('close')
    one = sessions(d, 1)[0]
    assert output(one, 'cat f') == one.names  # that would be seen
    assert len(engine.containers()) == 1
    one.ctl('close')
    assert engine.containers() == []
    before = proxy.requests()
    listed = subprocess.run(f'tar -C {d.mnt} -c u0 u1 u2 u3 u4 | tar -t', shell=True, stdout=subprocess.PIPE, text=True,
                            check=True).stdout.split()
    assert sum(name.endswith('/s1/f') for name in listed) == 50
    assert proxy.requests() == before
    assert engine.containers() == []


def test_a_cold_session_is_served_while_the_engine_is_stopped(docker, engine):
    d = docker()
    in_parallel(d, up, [d.session('u9/first/s1')])
    engine.stop()
    try:
        d.expect('there is no Docker engine')
        for s in sessions(d, 10):
            assert Child(lambda s=s: os.listdir(s.path)).result(20) == []
            write(s / 'f', 'x')
            assert read(s / 'f') == 'x'
            assert s.state() in ('provisioning', 'failed')
    finally:
        engine.start()
    s = sessions(d, 1)[0]
    s.ctl('provision')
    assert output(s, 'cat f') == 'x'


# ── who does not wait for whom ──────────────────────────────────────────────────────────────

def test_pulls_that_hang_delay_no_other_workspace(docker, engine, proxy):
    d = docker(f'unix://{proxy.path}')
    waiting = sessions(d, 10, 'waiting')
    proxy.stall([s.status()['sandbox'] for s in waiting])
    for s in waiting:
        os.listdir(s.path)
    wait_for(lambda: proxy.refused() >= 10 and proxy.pulls() > 0, 60, 'the pulls to hang')
    others = sessions(d, 3, 'other')
    in_parallel(d, up, others)
    assert {s.state() for s in others} == {'ready'}
    assert {s.state() for s in waiting} == {'provisioning'}
    assert len(engine.containers()) == 3
    for s in waiting:
        s.ctl('close')
    wait_for(lambda: proxy.pulls() == 0, 60, 'the pulls to be given up')
    proxy.stall(())
    in_parallel(d, up, waiting[:1])


# ── what is left, and what rest costs ───────────────────────────────────────────────────────

def test_closed_workspaces_leave_no_descriptor_and_no_thread(docker, engine):
    d = docker()
    many = sessions(d, 8)
    found = []
    for _ in range(2):
        in_parallel(d, up, many)
        assert len(engine.containers()) == 8
        assert not found or d.descriptors() >= found[0][0] + 8
        for s in many:
            os.rmdir(f'{s.inner}/jobs/j')
        in_parallel(d, lambda s: s.ctl('close'), many)
        assert engine.containers() == []
        assert come_to_rest([d.pid], 6)  # as long as a thread waits for more to do
        found.append((d.descriptors(), threads(d)))
    assert found[1][0] <= found[0][0]
    assert found[1][1] <= found[0][1] + 3  # how many read requests depends on the load


def test_idle_containers_cost_no_cpu(docker, engine):
    d = docker()
    used = sessions(d, 4)
    in_parallel(d, up, used)
    container = {s: engine.inspect(s.status()['sandbox']) for s in used}
    pids = [d.pid, *(c['State']['Pid'] for c in container.values())]
    assert come_to_rest(pids, 17)  # longer than a connection is silent while somebody waits
    # What happened to a guest meanwhile is found out when it is used.
    assert output(used[0], 'echo alive', 'k') == 'alive\n'
    engine('pause', container[used[1]]['Id'])
    assert output(used[1], 'echo woken', 'k', timeout=100) == 'woken\n'
