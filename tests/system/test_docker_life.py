# SPDX-License-Identifier: Apache-2.0
"""The life of containers: what somebody else does to them behind our back, engines that go and come back,
daemons that end while jobs run, and many at once."""

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import time

import pytest

from engine import container_of, ready, running_engine
from engine_proxy import Cut, Meanwhile, Proxy, status
from harness import SLOWNESS, Child, errno_of, read, run, sh, thread_files, wait_for, write
from jobs import Job, output
from jobs import run as run_job

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]

# Says when it has begun, and when it is told to end.
FOREVER = 'echo begun; while :; do sleep 0.1; done'


@pytest.fixture(scope='module', name='engine')
def _engine():
    with running_engine() as engine:
        yield engine


@pytest.fixture(name='s')
def _s(docker):
    return docker().session()


def begun(s, name='long', cmd=FOREVER):
    """A job that runs."""
    j = Job(s, name).make().start(cmd)
    j.wait_output('begun')
    return j


def provisioned(d):
    return d.metrics()['wsmfs_provision_seconds_count']


def labels_of(s):
    """What makes a container that somebody makes by hand look like one of ours."""
    return ['--label', f'wsmfs.id={s.id()}', '--label', f'wsmfs.instance={s.daemon.status()["instance"]}']


def progress(s):
    return [json.loads(line) for line in read(f'{s.control}/progress').splitlines()]


# ── behind our back ─────────────────────────────────────────────────────────────────────────

def test_a_job_right_after_its_container_was_killed_runs_in_the_next_one(engine, s):
    """It may have been handed to the guest that had just gone, which was never asked."""
    ready(s)
    for i in range(4):
        assert output(s, 'echo before', f'before{i}') == 'before\n'
        engine('kill', container_of(engine, s))
        assert output(s, 'echo after', f'after{i}') == 'after\n'


@pytest.mark.parametrize('setup', ['', 'setup = true\n'])
def test_a_job_that_comes_while_its_container_is_being_stopped_runs_in_the_next_one(engine, docker, setup):
    """Its guest has been told to end, waits for its jobs and refuses new ones."""
    s = ready(docker(config=f'[sandbox]\n{setup}').session())
    j = begun(s, cmd='trap "echo told; while [ ! -e go ]; do sleep 0.1; done; exit 7" TERM; echo begun; while :; do sleep 0.1; done')
    before = container_of(engine, s)
    engine('kill', '-s', 'TERM', before)
    j.wait_output('told')
    later = [Job(s, f'later{i}').make().start(f'echo later {i}') for i in range(2)]
    wait_for(lambda: [other.state() for other in later] == ['starting', 'starting'], 10)
    write(s / 'go', '')
    assert j.exit(20) == '7'
    for i, other in enumerate(later):
        assert (other.exit(30), other.out()) == ('0', f'later {i}\n')
    s.wait_state('ready')
    assert len(engine.containers()) == 1


HOW = {
    'kill': 'killed',
    'stop -t 0': 'gone',
    'rm -f': 'removed',
}


@pytest.mark.parametrize('how', HOW)
def test_a_container_that_is_ended_ends_its_job_with_the_reason_and_the_next_job_works(engine, s, how):
    write(s / 'f', 'here')
    ready(s)
    events = s.daemon.events()
    j = begun(s)
    before = provisioned(s.daemon)
    engine(*how.split(), container_of(engine, s))
    code = j.exit(20)
    if how.startswith('stop'):  # which tells it first
        assert code.startswith(('signal ', 'error '))
    else:
        assert code.startswith('error ') and HOW[how] in code, code
    assert read(s / 'f') == 'here' and os.listdir(s.path) == ['f']
    assert events.wait_named('lost', id=s.id())['text'].startswith('the container is gone')
    events.close()
    assert output(s, 'cat f; echo more >> f', 'next') == 'here'
    assert s.state() == 'ready' and s.error() == ''
    assert read(s / 'f') == 'heremore\n'
    assert provisioned(s.daemon) == before + 1
    assert len(engine.containers()) == 1


@pytest.mark.parametrize('how', HOW)
def test_an_idle_container_that_is_ended_is_noticed_without_any_use(engine, s, how):
    """No job has run, so there is no stream that could break: the engine's events tell it."""
    ready(s)
    engine(*how.split(), container_of(engine, s))
    s.wait_state('failed', timeout=10)
    assert 'the container is gone' in s.error()
    assert progress(s)[-1]['step'] == 'lost'
    assert os.listdir(s.path) == []
    s.ctl('provision')
    assert s.state() == 'ready' and s.error() == ''
    assert engine.inspect(container_of(engine, s))['State']['Running']


def test_a_container_that_is_paused_while_a_job_runs_goes_on_at_once(engine, s):
    ready(s)
    j = begun(s, cmd='echo begun; while [ ! -e go ]; do sleep 0.1; done; echo end')
    container = container_of(engine, s)
    engine('pause', container)
    wait_for(lambda: not engine.inspect(container)['State']['Paused'], 10, 'the container to go on')
    write(s / 'go', '')
    assert (j.exit(20), j.out()) == ('0', 'begun\nend\n')
    assert 'unpause' in [line['step'] for line in progress(s)]


def test_an_idle_container_that_is_paused_goes_on_at_the_next_use(engine, s):
    write(s / 'f', 'here')
    ready(s)
    assert output(s, 'cat f', 'a') == 'here'
    container = container_of(engine, s)
    engine('pause', container)
    s.wait_state('failed', timeout=10)
    assert 'paused' in s.error()
    assert read(s / 'f') == 'here'
    begin = time.monotonic()
    assert output(s, 'cat f', 'b') == 'here'
    assert time.monotonic() - begin < 5 * SLOWNESS
    assert engine.containers() == [container]


def test_a_paused_container_that_somebody_lets_go_on_is_ready_again(engine, s):
    ready(s)
    engine('pause', container_of(engine, s))
    s.wait_state('failed', timeout=10)
    engine('unpause', container_of(engine, s))
    s.wait_state('ready', timeout=10)
    assert s.error() == ''


def test_a_container_that_is_paused_before_its_guest_has_greeted_goes_on(engine, proxy, docker):
    """Somebody makes an image of it in the very moment."""
    s = docker(host=proxy.host).session()
    started = proxy.fail('POST /containers/.*/start', Meanwhile(lambda: engine('pause', s.status()['sandbox'])))
    begin = time.monotonic()
    s.ctl('provision')
    assert time.monotonic() - begin < 10 * SLOWNESS and started.hits == 1
    assert output(s, 'echo x') == 'x\n'


def test_a_container_that_somebody_renames_goes_with_its_workspace(engine, s):
    """And one that has only its labels, since it was made of an image of it, stays."""
    ready(s)
    renamed = container_of(engine, s)
    engine('commit', renamed, 'made:1')
    other = engine('create', '--network', 'none', '--entrypoint', '/bin/sleep', 'made:1', '1000')
    engine('rename', renamed, 'renamed')
    assert output(s, 'echo x') == 'x\n'
    s.ctl('close')
    assert engine.containers() == [other]
    assert output(s, 'echo y', 'y') == 'y\n'


def test_our_own_close_and_start_are_nothing_that_anybody_has_done(engine, s):
    events = s.daemon.events()
    for i in range(5):
        ready(s)
        assert output(s, 'echo x', f'j{i}') == 'x\n'
        s.ctl('close')
    ready(s)
    s.ctl('destroy')
    assert engine.containers() == []
    events.wait_named('destroyed')
    assert not [e for e in events.lines if e['event'] in ('lost', 'halted')]
    events.close()


def test_following_the_events_costs_nothing_while_nothing_happens(engine, s):
    ready(s)
    assert output(s, 'echo x') == 'x\n'
    assert engine.containers()

    def switches():
        return sum(int(line.split()[1]) for text in thread_files(s.daemon.pid, 'status') for line in text.splitlines()
                   if line.startswith('voluntary_ctxt_switches'))

    def is_quiet():
        before = switches()
        time.sleep(3)  # this is no wait for a result: it is the time in which nothing may happen
        return switches() - before <= 1
    wait_for(is_quiet, 30, 'three seconds in which no thread wakes')


def test_a_guest_that_the_host_kills_is_noticed_and_made_up_for(engine, s):
    """Its first process is the guest: the host's root can kill it by its number."""
    write(s / 'f', 'here')
    ready(s)
    j = begun(s)
    os.kill(engine.inspect(container_of(engine, s))['State']['Pid'], signal.SIGKILL)
    code = j.exit(20)
    assert code.startswith('error ') and 'killed' in code, code
    assert output(s, 'cat f', 'next') == 'here'


@pytest.mark.slow
def test_a_guest_that_hangs_is_given_up_and_its_container_made_anew(engine, s):
    ready(s)
    j = begun(s)
    before = container_of(engine, s)
    os.kill(engine.inspect(before)['State']['Pid'], signal.SIGSTOP)
    code = j.exit(200)
    assert code.startswith('error ') and 'hangs' in code, code
    assert run_job(s, 'echo again', 'next', timeout=60)[:2] == ('0', 'again\n')
    assert engine.containers() != [before]


@pytest.mark.slow
def test_a_guest_that_hangs_before_the_first_job_is_replaced(engine, s):
    ready(s)
    before = container_of(engine, s)
    os.kill(engine.inspect(before)['State']['Pid'], signal.SIGSTOP)
    assert run_job(s, 'echo x', timeout=120)[:2] == ('0', 'x\n')
    assert len(engine.containers()) == 1 and engine.containers() != [before]


@pytest.mark.slow
def test_something_else_than_a_guest_in_a_container_of_ours_is_replaced(engine, s):
    other = engine('run', '-d', '--name', s.status()['sandbox'], '--network', 'none', *labels_of(s), 'base:1', '/bin/sleep',
                   '1000')
    assert run_job(s, 'echo x', timeout=120)[:2] == ('0', 'x\n')
    assert other not in engine.containers()


# ── an engine that tells little ─────────────────────────────────────────────────────────────

@pytest.fixture(name='proxy')
def _proxy(engine, workdir):
    with contextlib.closing(Proxy(engine.socket, f'{workdir}/engine')) as proxy:
        yield proxy


def test_without_events_all_is_found_out_at_the_next_use(engine, proxy, docker):
    refused = proxy.fail('GET /events', status(403, '{"message":"no"}'))
    s = ready(docker(host=proxy.host).session())
    wait_for(lambda: refused.hits > 1, 20, 'the events to be asked for again')
    engine('pause', container_of(engine, s))
    assert output(s, 'echo woken', 'a') == 'woken\n'
    engine('rm', '-f', container_of(engine, s))
    assert output(s, 'echo anew', 'b') == 'anew\n'
    j = begun(s)
    engine('kill', container_of(engine, s))
    assert 'killed' in j.exit(20)


def test_a_stream_of_events_that_breaks_is_begun_again(engine, proxy, docker):
    """It breaks in the middle of the very event."""
    cut = proxy.fail('GET /events', Cut(400, times=1))
    s = ready(docker(host=proxy.host).session())
    wait_for(lambda: cut.holding, 20, 'the events to be asked for')
    engine('kill', container_of(engine, s))
    s.wait_state('failed', timeout=20)
    assert 'killed' in s.error()
    engine('rm', '-f', container_of(engine, s))
    wait_for(lambda: 'removed' in s.error(), 20)
    assert len([r for r in proxy.seen if r.startswith('GET /events')]) > 1


def test_a_removal_that_is_under_way_is_waited_for(proxy, docker):
    s = docker(host=proxy.host).session()
    labels = {'wsmfs.id': s.id(), 'wsmfs.instance': s.daemon.status()['instance']}
    going = json.dumps({'Id': 'ab' * 32, 'State': {'Status': 'removing'}, 'Config': {'Labels': labels}})
    fault = proxy.fail(f'GET /containers/{s.status()["sandbox"]}/json', status(200, going, times=40))
    s.ctl('provision')
    assert fault.hits == 40 and s.state() == 'ready'
    assert output(s, 'echo x') == 'x\n'


# ── memory ──────────────────────────────────────────────────────────────────────────────────

def test_a_job_that_eats_all_memory_is_killed_and_its_container_goes_on(engine, docker):
    if not json.loads(engine('info', '--format', '{{json .MemoryLimit}}')):
        pytest.skip('the engine cannot limit memory here')
    s = ready(docker(config='[sandbox]\nmemory = 64M\n').session())
    events, before = s.daemon.events(), container_of(engine, s)
    code, out, _ = run_job(s, '/bin/busybox tail /dev/zero; echo code $?')
    assert (code, out) == ('0', 'code 137\n')
    events.wait(lambda e: e['event'] == 'noticed' and 'OOM' in e['text'], 20)
    events.close()
    assert output(s, 'echo next', 'next') == 'next\n'
    assert container_of(engine, s) == before


# ── the engine goes and comes back ──────────────────────────────────────────────────────────

def test_an_engine_that_stops_takes_its_containers_and_gives_them_back(engine, s):
    s.daemon.expect('there is no Docker engine|does not answer|the Docker engine at')
    write(s / 'f', 'x')
    ready(s)
    j = begun(s)
    engine.stop()
    try:
        write(s / 'g', 'y')
        assert read(s / 'f') + read(s / 'g') == 'xy'
        assert j.exit(30).startswith(('signal ', 'error '))
        code = run_job(s, 'echo never', 'down')[0]
        assert code.startswith('error ') and 'Docker engine' in code, code
        t = s.daemon.session('bob/coder/s1')
        write(t / 'h', 'z')
        assert errno_of(t.ctl, 'provision') == 'EHOSTUNREACH'
        assert 'Docker engine' in t.error()
        assert read(t / 'h') == 'z'
    finally:
        engine.start()
    s.ctl('provision')  # `never` has failed just now, and a job would be told the same at once
    assert output(s, 'cat f g', 'up') == 'xy'
    t.ctl('provision')
    assert output(t, 'cat h') == 'z'
    assert len(engine.containers()) == 2


def test_an_idle_container_that_an_engine_has_stopped_is_noticed_when_the_engine_is_back(engine, s):
    ready(s)
    engine.stop()
    engine.start()
    s.wait_state('failed', timeout=30)
    assert 'the container is gone' in s.error()
    assert output(s, 'echo x') == 'x\n'


def test_a_provision_finds_out_that_an_engine_that_went_took_an_idle_container_along(engine, s):
    """Nothing else tells it: no job has run, and the events ended before."""
    s.daemon.expect('there is no Docker engine')
    ready(s)
    engine.stop()
    try:
        assert errno_of(s.ctl, 'provision') == 'EHOSTUNREACH'
        assert s.state() == 'failed' and 'there is no Docker engine' in s.error()
    finally:
        engine.start()
    s.ctl('provision')
    assert s.state() == 'ready' and s.error() == ''
    assert engine.inspect(container_of(engine, s))['State']['Running']


def test_a_job_that_finds_no_container_tells_the_state(engine, s):
    s.daemon.expect('there is no Docker engine')
    ready(s)
    engine.stop()
    try:
        assert run_job(s, 'echo never')[0].startswith('error there is no Docker engine')
        s.wait_state('failed', timeout=10)
        assert 'there is no Docker engine' in s.error()
    finally:
        engine.start()


def test_a_provision_of_what_runs_needs_no_engine_that_answers(engine, s):
    ready(s)
    os.kill(engine.proc.pid, signal.SIGSTOP)
    try:
        begin = time.monotonic()
        s.ctl('provision')
        assert time.monotonic() - begin < 5 * SLOWNESS
        assert s.state() == 'ready'
    finally:
        os.kill(engine.proc.pid, signal.SIGCONT)


def test_files_do_not_wait_for_a_close_that_waits_for_its_engine(engine, s):
    write(s / 'f', 'here')
    ready(s)
    os.kill(engine.proc.pid, signal.SIGSTOP)
    try:
        closer = s.daemon.child(lambda: s.ctl('close'))
        s.wait_state('closing')
        begin = time.monotonic()
        assert os.listdir(s.path) == ['f'] and read(s / 'f') == 'here'
        write(s / 'g', 'new')
        assert time.monotonic() - begin < 5 * SLOWNESS and s.state() == 'closing'
    finally:
        os.kill(engine.proc.pid, signal.SIGCONT)
    closer.result()
    s.wait_state('ready')
    assert output(s, 'cat f g') == 'herenew'
    assert len(engine.containers()) == 1


@pytest.fixture(name='sturdy')
def _sturdy(engine):
    """The engine, whose containers outlive it for the time of a test, as when it is upgraded."""
    engine.stop()
    engine.more = ['--live-restore']
    engine.start()
    yield engine
    engine.stop()
    engine.more = []
    engine.start()


def test_jobs_go_on_while_an_engine_is_away_that_leaves_its_containers(sturdy, docker):
    """The guest is spoken to without the engine."""
    s = ready(docker().session())
    s.daemon.expect('there is no Docker engine|the Docker engine at')
    j, ended = begun(s), begun(s, 'ended')
    container = container_of(sturdy, s)
    pid = sturdy.inspect(container)['State']['Pid']
    sturdy.stop()
    try:
        assert output(s, 'echo no engine is needed', 'away') == 'no engine is needed\n'
        s.ctl('provision')
        assert j.state() == 'running' and s.state() == 'ready'
        j.ctl('kill')
        assert j.exit(30).startswith('signal ')
        os.kill(pid, signal.SIGKILL)
        code = ended.exit(20)
        assert code.startswith('error the container has ended'), code
    finally:
        sturdy.start()
    s.wait_state('failed', timeout=30)
    assert output(s, 'echo x', 'next') == 'x\n'


# ── names ───────────────────────────────────────────────────────────────────────────────────

def test_a_foreign_container_of_that_name_is_named_and_never_touched(engine, s):
    s.daemon.expect('is not this mount')
    name = s.status()['sandbox']
    foreign = engine('run', '-d', '--name', name, '--network', 'none', '--label', f'wsmfs.id={s.id()}',
                     '--label', 'wsmfs.instance=another', 'base:1', '/bin/sleep', '1000')
    write(s / 'f', 'x')
    assert errno_of(s.ctl, 'provision') == 'EIO'
    assert name in s.error()
    code = run_job(s, 'echo never')[0]
    assert code.startswith('error ') and name in code
    for verb in ('close', 'destroy'):
        s.ctl(verb)
    assert engine.inspect(foreign)['State']['Running']
    engine('rm', '-f', foreign)
    assert output(s, 'ls', 'next') == ''


def test_a_container_of_ours_that_was_stopped_is_started_again(engine, docker):
    d = docker()
    s = ready(d.session())
    container = container_of(engine, s)
    d.kill()
    engine('stop', '-t', '0', container)
    d.start()
    assert output(s, 'echo x') == 'x\n'
    assert engine.containers() == [container]


def test_a_container_that_takes_long_to_go_is_waited_for(engine, s):
    """It has our name and our labels, and whoever stops it must wait for its time-out."""
    name = s.status()['sandbox']
    going = engine('run', '-d', '--rm', '--name', name, '--network', 'none', *labels_of(s), 'base:1', '/bin/sh', '-c',
                   'trap "" TERM; while :; do sleep 1; done')
    stopper = s.daemon.popen('docker', '-H', engine.host, 'stop', '-t', '3', going, stdout=subprocess.DEVNULL)
    s.ctl('provision')
    assert s.state() == 'ready'
    assert stopper.wait(60) == 0
    assert going not in engine.containers()
    assert output(s, 'echo x') == 'x\n'


# ── many ────────────────────────────────────────────────────────────────────────────────────

def test_fifty_sessions_are_provisioned_at_once(engine, docker):
    d = docker(isolation='per_session')
    sessions = [d.session(f'alice/coder/s{i}') for i in range(50)]

    def use(s):
        os.listdir(s.path)
        return run_job(s, f'echo {s.names} > f; cat f', timeout=200)
    children = [d.child(lambda s=s: use(s)) for s in sessions]
    for s, child in zip(sessions, children):
        assert child.result(200) == ('0', s.names + '\n', '')
        assert read(s / 'f') == s.names + '\n'
    assert len(engine.containers()) == 50
    assert provisioned(d) == 50
    d.ctl('close-all')
    assert engine.containers() == []


def test_a_close_and_eight_accesses_at_the_same_moment(engine, docker):
    d = docker()
    s = ready(d.session())
    write(s / 'f', 'here')

    def access(i, n):
        if i == 0:
            errno_of(s.ctl, 'close')  # EBUSY or so is an answer too
        elif i < 5:
            assert read(s / 'f') == 'here' and 'f' in os.listdir(s.path)
        else:
            code, out, _ = run_job(s, 'cat f', f'j{n}-{i}', timeout=100)
            # the close may end it, or the wait for what it closes
            assert (code, out) == ('0', 'here') or code.startswith(('signal ', 'error ')), (code, out)
    for n in range(6):
        for child in [d.child(lambda i=i, n=n: access(i, n)) for i in range(9)]:
            child.result(120)
        d.end_children()
        assert output(s, 'cat f', f'after{n}') == 'here'
        assert len(engine.containers()) == 1


def test_one_flight_and_one_set_of_files_for_32_processes(engine, docker):
    """Two containers started from one state, and the last to save wins."""
    d = docker(isolation='per_user')
    sessions = [d.session('alice/a/s1'), d.session('alice/b/s2')]

    def append(i):
        fd = os.open(sessions[i % 2] / 'all', os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        for n in range(100):
            os.write(fd, f'{i} {n}\n'.encode())
        os.close(fd)
        if i < 4:
            return run_job(sessions[i % 2], 'echo x', f'j{i}')[0]
        return '0'
    for child in [d.child(lambda i=i: append(i)) for i in range(32)]:
        assert child.result(120) == '0'
    assert sorted(read(sessions[0] / 'all').splitlines()) == sorted(f'{i} {n}' for i in range(32) for n in range(100))
    assert provisioned(d) == 1 and len(engine.containers()) == 1


# ── idle, evicted, left behind ──────────────────────────────────────────────────────────────

def test_an_eviction_between_two_commands_is_invisible(engine, docker):
    d = docker(ttl=1)
    s = d.session()
    write(s / 'f', 'kept')
    assert output(s, 'cat f; export X=1; cd /', 'first') == 'kept'
    wait_for(lambda: s.state() == 'absent' and not engine.containers(), 60)
    before = provisioned(d)
    assert run_job(s, 'cat f', 'second') == ('0', 'kept', '')
    assert provisioned(d) == before + 1
    assert s.error() == ''


def test_the_idle_are_evicted_and_the_busy_are_not(engine, docker):
    d = docker(isolation='per_session', ttl=1)
    idle, busy = d.session('alice/coder/idle'), d.session('alice/coder/busy')
    ready(idle)
    j = begun(busy, cmd='echo begun; while [ ! -e go ]; do sleep 0.1; done; echo end')
    wait_for(lambda: idle.state() == 'absent', 60)
    d.ctl('sweep')
    assert engine.containers() == [container_of(engine, busy)]
    write(busy / 'go', '')
    assert (j.exit(), j.out()) == ('0', 'begun\nend\n')
    wait_for(lambda: not engine.containers(), 60)


def test_containers_of_which_nothing_is_known_any_more_are_evicted(engine, docker):
    """The state directory is lost: their labels alone say whose they are."""
    d = docker(isolation='per_session')
    for i in range(3):
        ready(d.session(f'alice/coder/s{i}'))
    d.kill()
    sh(f'rm -rf {d.top}/state')
    assert len(engine.containers()) == 3
    d.start(ttl=1)
    wait_for(lambda: not engine.containers(), 60)


def test_labels_that_name_no_workspace_bring_none(engine, docker):
    """An image may have labels of its own, and whoever runs it gives them to a container."""
    d = docker()
    instance = d.status()['instance']
    id_ = hashlib.blake2b(b'per_agent/alice/../../out', digest_size=8).hexdigest()
    for name, agent, own in [('planted', '../../out', id_), ('good', 'coder', d.session().id())]:
        engine('create', '--name', name, '--label', f'wsmfs.instance={instance}', '--label', f'wsmfs.id={own}',
               '--label', 'wsmfs.user=alice', '--label', f'wsmfs.agent={agent}', '--label', 'wsmfs.session=s1', 'base:1', '/bin/busybox')
    os.makedirs(f'{d.basedir}/alice/coder')
    write(f'{d.basedir}/alice/coder/f', 'here')
    d.restart()
    wait_for(lambda: d.status()['workspaces']['ready'] == 1)
    assert read(d.session() / 'f') == 'here'  # whatever session the label names
    assert not os.path.exists(f'{d.top}/out')
    assert sum(d.status()['workspaces'][state] for state in ['provisioning', 'ready', 'failed']) == 1
    assert 'planted' in engine('ps', '-a', '--format', '{{.Names}}')


def test_two_instances_on_one_engine_leave_each_other_alone(engine, docker):
    one, two = docker(), docker()
    names = 'alice/coder/s1'
    s, t = one.session(names), two.session(names)
    write(s / 'f', 'one')
    write(t / 'f', 'two')
    ready(s)
    j = begun(t, cmd='echo begun; while [ ! -e go ]; do sleep 0.1; done; cat f')
    assert s.id() == t.id()
    other = container_of(engine, t)
    for _ in range(2):
        one.restart()
        one.ctl('sweep')
        assert output(s, 'cat f', f'j{_}') == 'one'
    s.ctl('destroy')
    assert engine.containers() == [other]
    write(t / 'go', '')
    assert (j.exit(), j.out()) == ('0', 'begun\ntwo')
    assert os.listdir(s.path) == []


@pytest.mark.parametrize('end', ['eviction', 'unmount'])
def test_two_mounts_of_one_instance_share_a_container_and_end_no_job_of_the_other(engine, docker, end):
    one, two = docker(), docker(start=False)
    two.opts['basedir'] = one.basedir
    two.start(ttl=1 if end == 'eviction' else '1h')
    s, t = one.session(), two.session()
    j = begun(s, cmd='echo begun; while [ ! -e go ]; do sleep 0.1; done; cat f')
    assert output(t, 'echo two > f; cat f') == 'two\n'
    container = container_of(engine, s)
    if end == 'eviction':
        wait_for(lambda: t.state() == 'absent', 60)
    else:
        two.stop()
    assert engine.containers() == [container]
    write(s / 'go', '')
    assert (j.exit(), j.out()) == ('0', 'begun\ntwo\n')
    if end == 'eviction':  # nothing of the other's runs there any more
        os.listdir(t.path)
        wait_for(lambda: not engine.containers(), 60)
        s.wait_state('failed')
    assert output(s, 'cat f', 'next') == 'two\n'


@pytest.mark.parametrize('end', ['remove', 'kill', 'close'])
def test_two_mounts_that_start_a_container_in_the_same_moment_both_reach_it(engine, docker, end):
    one, two = docker(), docker(start=False)
    two.opts['basedir'] = one.basedir
    two.start()
    sessions = [ready(one.session()), ready(two.session())]
    for n in range(6):
        if end == 'close':
            sessions[n % 2].ctl('close')
        else:
            engine(*{'remove': ['rm', '-f'], 'kill': ['kill']}[end], container_of(engine, sessions[0]))
        children = [d.child(lambda s=s: run_job(s, 'echo x', f'j{n}')) for d, s in zip([one, two], sessions)]
        assert [child.result(120) for child in children] == [('0', 'x\n', '')] * 2
        assert len(engine.containers()) == 1


# ── the daemon ends and comes back ──────────────────────────────────────────────────────────

COUNT = 'i=0; while [ $i -lt 200 ]; do echo $i; i=$((i+1)); [ -e fast ] || sleep 0.05; done; echo end >&2'


@pytest.mark.parametrize('end', ['kill', 'detach'])
@pytest.mark.parametrize('where', ['here', 'on another host'])
def test_a_job_goes_on_without_its_daemon_and_its_output_is_whole(engine, docker, end, where):
    d = docker()
    s = d.session()
    j = Job(s, 'j').make().start(COUNT)
    j.wait_output('3\n')
    before = engine.containers()
    if end == 'kill':
        d.kill()
    else:
        d.stop(expect_exit=75, by=signal.SIGUSR1)
    assert engine.containers() == before
    command = d.command
    if where != 'here':
        d.command = lambda *more: ['unshare', '--uts', 'sh', '-c', 'hostname elsewhere; exec "$@"', 'sh', *command(*more)]
    d.start()
    write(s / 'fast', '')
    assert j.exit(60) == '0'
    assert j.text('stdout') == ''.join(f'{i}\n' for i in range(200))
    assert j.text('stderr') == 'end\n'
    assert engine.containers() == before


@pytest.mark.parametrize('how', ['close', 'max_age', 'unmount', 'eviction'])
def test_a_close_is_graceful_and_returns_when_it_is_over(engine, docker, how):
    d = docker(ttl='1' if how == 'eviction' else '1h', **({'max_age': '3'} if how == 'max_age' else {}))
    s = d.session()
    bye = 'trap "sleep 1; echo bye > bye; exit 0" TERM; echo begun; while :; do sleep 0.05; done'
    if how == 'eviction':
        run_job(s, f"/bin/busybox setsid sh -c '{bye}' > /dev/null 2>&1 &")
    else:
        begun(s, cmd=bye)
    if how == 'close':
        s.ctl('close force')
    elif how == 'unmount':
        d.stop()
    else:
        wait_for(lambda: s.state() == 'absent', 60)
    assert read(f'{d.basedir}/alice/coder/bye') == 'bye\n'
    assert engine.containers() == []


# ── images and disks ────────────────────────────────────────────────────────────────────────

def test_an_image_that_goes_and_comes_back(engine, docker):
    s = docker(image='fleeting:1', backend='pull = never', start=False)
    engine.make_image('fleeting:1')
    s = s.start().session()
    s.daemon.expect('is not at the engine')
    write(s / 'f', 'here')
    assert output(s, 'cat f', 'a') == 'here'
    engine('rm', '-f', container_of(engine, s))
    engine('rmi', '-f', 'fleeting:1')
    code = run_job(s, 'cat f', 'b')[0]
    assert code.startswith('error ') and 'fleeting:1' in code, code
    assert errno_of(s.ctl, 'provision') == 'ENXIO'
    assert 'fleeting:1' in s.error()
    assert read(s / 'f') == 'here'
    engine.make_image('fleeting:1')
    s.ctl('provision')
    assert output(s, 'cat f', 'c') == 'here'
    s.ctl('close')
    engine('rmi', '-f', 'fleeting:1')


@pytest.fixture(name='small_disk')
def _small_disk(docker):
    """A mount whose base directory is a file system with room for little."""
    d = docker(start=False)
    os.makedirs(d.basedir)
    run('mount', '-t', 'tmpfs', '-o', 'size=8m,nr_inodes=200,mode=700', 'tmpfs', d.basedir)
    yield d
    with contextlib.suppress(AssertionError):
        d.stop()
    run('umount', '-l', d.basedir)


def test_a_full_disk_is_said_and_nothing_is_lost(engine, small_disk):
    d = small_disk
    s = d.start().session()
    write(s / 'f', 'kept')
    ready(s)
    assert errno_of(write, s / 'filler', b'x' * (16 << 20)) == 'ENOSPC'
    code, _, err = run_job(s, 'echo more > g', 'full')
    assert code != '0' and 'No space' in err
    assert read(s / 'f') == 'kept'
    assert output(s, 'cat f', 'reads') == 'kept'
    s.ctl('close')
    assert output(s, 'cat f', 'again') == 'kept'
    os.unlink(s / 'filler')
    assert output(s, 'echo more > g; cat g', 'room') == 'more\n'
    assert read(s / 'g') == 'more\n'


def test_a_disk_without_room_for_another_file_refuses_a_container_in_words(engine, small_disk):
    d = small_disk
    s = d.start().session()
    d.expect('No space left')
    write(s / 'f', 'kept')

    def fill():
        for i in range(300):
            write(f'{d.basedir}/alice/coder/n{i}', '')
    wait_for(lambda: s.state() == 'ready', 60)
    s.ctl('close')
    assert errno_of(fill) == 'ENOSPC'
    os.listdir(s.path)
    wait_for(lambda: s.state() == 'failed', 60)
    assert errno_of(s.ctl, 'provision') == 'EIO'
    assert 'No space left' in s.error()
    code = run_job(s, 'cat f', 'full')[0]
    assert code.startswith('error ') and 'No space left' in code
    assert read(s / 'f') == 'kept'
    for name in os.listdir(s.path):
        if name != 'f':
            os.unlink(s / name)
    s.ctl('provision')
    assert output(s, 'cat f', 'room') == 'kept'
