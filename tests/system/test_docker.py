# SPDX-License-Identifier: Apache-2.0
"""The docker backend, on a real engine."""

import os
import re
import time

import pytest

from engine import container_of, ready, running_engine
from harness import errno_of, mount_fails, read, wait_for, write
from jobs import Job, output
from jobs import run as run_job

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]


@pytest.fixture(scope='module', name='engine')
def _engine():
    with running_engine() as engine:
        yield engine


@pytest.fixture(name='s')
def _s(docker):
    return docker().session()


# ── files ───────────────────────────────────────────────────────────────────────────────────

def test_files_never_wait_for_the_engine(docker, engine):
    d = docker(start=False, shutdown_timeout=1)
    d.set_config('[backend docker]\nhost = unix:///nowhere/docker.sock\n')
    d.expect('nowhere/docker.sock|not closed within|could not be closed')
    s = d.start().session()
    write(s / 'f', 'x')
    assert read(s / 'f') == 'x'
    assert os.listdir(s.path) == ['f']
    assert errno_of(s.ctl, 'provision') == 'EHOSTUNREACH'
    assert '/nowhere/docker.sock' in s.error()
    assert engine.containers() == []


def test_an_access_provisions_and_a_job_sees_the_files(s):
    write(s / 'f', 'from outside\n')
    ready(s)
    assert output(s, 'cat f; echo inside > g') == 'from outside\n'
    assert read(s / 'g') == 'inside\n'


def test_what_a_job_wrote_is_visible_when_exit_reads(s):
    for i in range(50):
        assert run_job(s, f'echo {i} > f; mkdir -p d{i}', f'j{i}')[0] == '0'
        assert read(s / 'f') == f'{i}\n'
        assert f'd{i}' in os.listdir(s.path)


# ── lifecycle ───────────────────────────────────────────────────────────────────────────────

def test_the_container_is_named_and_labelled(engine, s):
    ready(s)
    c = engine.inspect(container_of(engine, s))
    assert re.fullmatch(r'/wsm-[0-9a-f]{8}-[0-9a-f]{16}', c['Name']) and c['Name'] == '/' + s.status()['sandbox']
    labels = {key: value for key, value in c['Config']['Labels'].items() if key not in ('wsmfs.spec', 'wsmfs.version')}
    assert labels == {'wsmfs.instance': s.daemon.status()['instance'], 'wsmfs.id': s.id(), 'wsmfs.user': 'alice',
                      'wsmfs.agent': 'coder', 'wsmfs.session': '', 'wsmfs.isolation': 'per_agent'}
    assert c['HostConfig']['NetworkMode'] == 'none'
    assert c['HostConfig']['CapDrop'] == ['ALL']
    assert 'no-new-privileges' in c['HostConfig']['SecurityOpt']
    assert c['HostConfig']['PidsLimit'] > 0


def test_close_removes_the_container_and_keeps_the_files(engine, s):
    write(s / 'f', 'kept')
    ready(s)
    s.ctl('close')
    assert engine.containers() == []
    assert read(s / 'f') == 'kept'
    assert output(s, 'cat f') == 'kept'


def test_destroy_removes_the_files_too(engine, s):
    write(s / 'f', 'gone')
    ready(s)
    s.ctl('destroy')
    assert engine.containers() == []
    assert os.listdir(s.path) == []


@pytest.mark.parametrize('how', ['kill', 'stop', 'rm -f'])
def test_a_container_that_somebody_ended_is_made_up_for(engine, s, how):
    write(s / 'f', 'here')
    ready(s)
    j = Job(s, 'long').make().start('echo begun; sleep 1000')
    j.wait_output('begun')
    engine(*how.split(), container_of(engine, s))
    assert read(s / 'f') == 'here'
    assert j.exit().startswith('signal 15' if how == 'stop' else 'error ')  # a stop is told to it first
    assert output(s, 'cat f') == 'here'


def test_a_paused_container_is_woken(engine, s):
    write(s / 'f', 'here')
    ready(s)
    assert output(s, 'cat f', 'a') == 'here'
    engine('pause', container_of(engine, s))
    assert read(s / 'f') == 'here'
    assert output(s, 'cat f', 'b', timeout=120) == 'here'


def test_a_restart_finds_the_container_again(engine, docker):
    d = docker(keep_on_exit=True)
    s = d.session()
    ready(s)
    before = container_of(engine, s)
    d.restart()
    assert output(s, 'echo again') == 'again\n'
    assert engine.containers() == [before]


def test_a_job_goes_on_while_the_daemon_is_killed(engine, docker):
    d = docker()
    s = d.session()
    j = Job(s, 'j').make().start('echo one; while [ ! -e go ]; do sleep 0.1; done; echo two')
    j.wait_output('one')
    d.kill()
    d.start()
    write(s / 'go', '')
    assert j.out() == 'one\ntwo\n'
    assert j.exit() == '0'
    assert len(engine.containers()) == 1


def test_a_foreign_container_of_that_name_is_left_alone(engine, s):
    s.daemon.expect('is not this mount')
    name = s.status()['sandbox']
    foreign = engine('run', '-d', '--name', name, '--network', 'none', 'base:1', '/bin/sleep', '1000')
    assert errno_of(s.ctl, 'provision') == 'EIO'
    assert name in s.error()
    assert engine.inspect(foreign)['State']['Running']
    engine('rm', '-f', foreign)


def test_a_missing_image_is_enxio_and_files_work(docker):
    s = docker(image='nowhere.invalid/none:1', backend='pull = never').session()
    s.daemon.expect('is not at the engine')
    write(s / 'f', 'x')
    assert errno_of(s.ctl, 'provision') == 'ENXIO'
    assert 'nowhere.invalid/none:1' in s.error()
    assert read(s / 'f') == 'x'


def test_the_engine_may_go_and_come_back(engine, s):
    write(s / 'f', 'x')
    ready(s)
    engine.stop()
    try:
        write(s / 'g', 'y')
        assert read(s / 'f') + read(s / 'g') == 'xy'
    finally:
        engine.start()
    assert output(s, 'cat f g') == 'xy'


def test_an_unused_container_is_evicted(docker, engine):
    s = docker(ttl=1).session()
    os.listdir(s.path)
    wait_for(lambda: s.state() == 'absent', 60)
    assert engine.containers() == []


def test_containers_of_a_dead_daemon_are_found_and_evicted(docker, engine):
    d = docker(ttl='1h')
    s = d.session()
    ready(s)
    d.kill()
    d.start(ttl=1)
    wait_for(lambda: not engine.containers(), 60)


# ── isolation ───────────────────────────────────────────────────────────────────────────────

def test_the_guest_cannot_be_changed_from_inside(s):
    code, _, err = run_job(s, 'echo x > /.wsm/wsm-guest')
    assert code != '0' and err


def test_a_job_is_no_host_of_the_guest(s):
    """Only who is outside may connect: else a job could command the guest."""
    ready(s)
    code, out, _ = run_job(s, '/bin/busybox nc local:/.wsm/run/guest.sock < /dev/null | /bin/busybox wc -c', timeout=60)
    assert code == '0' and int(out) <= 200  # a greeting at most, and then the end


@pytest.mark.parametrize('end', ['close', 'kill'])
def test_what_a_container_leaves_in_the_place_of_its_socket_spoils_no_later_one(engine, s, end):
    ready(s)
    code, _, err = run_job(s, 'cd /.wsm/run && /bin/busybox rm guest.sock && mkdir -p guest.sock/a/b && echo x > guest.sock/a/f')
    assert code == '0', err
    if end == 'close':
        s.ctl('close')
        assert engine.containers() == []
    else:
        engine('kill', container_of(engine, s))
    assert output(s, 'echo again', 'k') == 'again\n'


def test_two_tenants_see_nothing_of_each_other(docker):
    d = docker()
    a, b = d.session('alice/coder/s1'), d.session('bob/coder/s1')
    write(a / 'secret', 'x')
    assert output(b, 'ls -a /workspace') == '.\n..\n'


# ── settings ────────────────────────────────────────────────────────────────────────────────

def test_the_users_of_jobs(docker):
    d = docker(config='[sandbox]\nuser = worker\n')
    s = d.session()
    assert output(s, 'id -u', 'a') == '1234\n'
    assert output(s, 'id -u', 'b', user='root') == '0\n'


def test_environment_and_limits(docker, engine):
    s = docker(config='[sandbox]\nenv = A=1 B=two\nmemory = 64M\ncpus = 0.5\npids = 64\n').session()
    assert output(s, 'echo $A $B') == '1 two\n'
    host = engine.inspect(container_of(engine, s))['HostConfig']
    assert (host['Memory'], host['NanoCpus'], host['PidsLimit']) == (64 << 20, 500000000, 64)


@pytest.mark.parametrize('backend,word', [('pull = sometimes', 'pull'), ('colour = red', 'colour'),
                                          ('image = a:1', 'image'), ('\nread_only = perhaps', ':5: read_only of section [backend docker]'),
                                          ('memory = 1G', 'memory of section [backend docker]: it is a key of section [sandbox]'),
                                          ('mounts = type=tmpfs', ':4: mounts of section [backend docker]: "type=tmpfs": '),
                                          ('build_network = none', ':4: build_network of section [backend docker]: nothing'),
                                          ('labels = wsmfs.id=x', 'wsmfs.id=x'),
                                          ('security_opt = seccomp=/no/where', 'seccomp=/no/where')])
def test_a_setting_that_makes_no_sense_refuses_the_mount_by_name(docker, backend, word):
    d = docker(start=False, backend=backend)
    assert word in mount_fails(d)[1]


DEFAULT_CAPS = 0xfb  # CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID, SETUID


@pytest.mark.parametrize('backend,caps,no_new', [
    ('', DEFAULT_CAPS, 1), ('cap_drop = CAP_CHOWN kill', DEFAULT_CAPS & ~(1 << 0 | 1 << 5), 1), ('cap_drop = all', 0, 1),
    ('cap_drop = ALL\ncap_add = CHOWN', 1, 1), ('cap_add = NET_RAW', DEFAULT_CAPS | 1 << 13, 1),
    ('security_opt = no-new-privileges=false', DEFAULT_CAPS, 0)])
def test_what_a_container_may_do_is_what_is_said(docker, backend, caps, no_new):
    text = output(docker(backend=backend).session(), 'cat /proc/self/status')
    of = dict(line.split(':\t', 1) for line in text.splitlines() if ':\t' in line)
    assert [int(of[name], 16) for name in ('CapEff', 'CapBnd', 'CapInh', 'CapAmb')] == [caps, caps, 0, 0]
    assert of['NoNewPrivs'] == str(no_new) and of['Seccomp'] == '2'


def test_a_capability_that_nobody_knows_is_refused_also_as_one_to_drop(docker):
    d = docker(backend='cap_drop = CHOWM')
    s = d.session()
    d.expect('CHOWM')
    assert errno_of(s.ctl, 'provision') == 'EINVAL'
    assert 'CHOWM' in s.error()


def test_a_seccomp_profile_is_a_file(docker, tmp_path):
    (tmp_path / 'profile').write_text('{ "defaultAction": "SCMP_ACT_ALLOW", "syscalls": [\n'
                                      '  { "names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO" } ] }', encoding='ascii')
    s = docker(backend=f'security_opt = seccomp={tmp_path}/profile').session()
    assert run_job(s, 'mkdir d')[0] == '1'
    assert output(s, 'echo works', 'k') == 'works\n'


def test_a_job_starts_faster_than_an_exec(s):
    ready(s)
    run_job(s, 'true', 'warm')
    begin = time.monotonic()
    for i in range(20):
        assert run_job(s, 'true', f'j{i}')[0] == '0'
    assert (time.monotonic() - begin) / 20 < 0.5


def test_with_provision_jobs_the_container_comes_when_it_is_asked_for(docker, engine):
    d = docker(provision='jobs')
    s = d.session().use()
    write(s / 'f', 'x')
    assert s.state() == 'ready' and engine.containers() == []
    s.ctl('provision')
    assert len(engine.containers('-q')) == 1
    other = d.session('bob/coder/s1').use()
    assert output(other, 'echo it') == 'it\n'
    assert len(engine.containers('-q')) == 2
    s.ctl('close')
    s.use()
    assert len(engine.containers()) == 1
