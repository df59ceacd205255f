# SPDX-License-Identifier: Apache-2.0
"""`setup` of [sandbox]: a command that runs once in each new sandbox, before the first job there."""

import json
import os
import signal

import pytest

from harness import mount_fails, read, wait_for, write
from jobs import Job, job, run

pytestmark = [pytest.mark.root]


def counting(more=''):
    """Each run of it leaves a line in the workspace."""
    return f'[sandbox]\nsetup = echo ran >> /workspace/setups; touch /tmp/prepared; {more or "true"}\n'


def setups(session):
    return read(session / 'setups').count('ran')


def progress(session):
    return [json.loads(line) for line in read(f'{session.control}/progress').splitlines()]


def test_it_runs_once_before_the_first_job_and_is_gone_afterwards(mount):
    s = mount(config=counting()).session().use()
    assert run(s, 'ls /tmp/prepared')[:2] == ('0', '/tmp/prepared\n')
    assert run(s, 'ls /tmp/prepared', 'second')[0] == '0'
    assert setups(s) == 1
    assert sorted(os.listdir(f'{s.inner}/jobs')) == ['j', 'second']
    assert [line['text'] for line in progress(s) if line['step'] == 'setup'] == ['runs', 'done']


def test_looking_at_files_does_not_run_it(mount):
    s = mount(config=counting()).session().use()
    write(s / 'file', 'x')
    s.ctl('provision')
    assert os.listdir(s.path) == ['file']


@pytest.mark.concurrency
def test_many_first_jobs_at_once_run_it_once_and_wait_for_it(mount):
    s = mount(config=counting('sleep 0.5')).session().use()
    many = [job(s, f'j{i}').start('ls /tmp/prepared') for i in range(20)]
    assert [j.exit() for j in many] == ['0'] * 20
    assert setups(s) == 1


def test_a_new_sandbox_runs_it_again(mount):
    s = mount(config=counting()).session().use()
    assert run(s, 'true')[0] == '0'
    s.ctl('close')
    assert run(s, 'ls /tmp/prepared', 'second')[0] == '0'
    assert setups(s) == 2


def test_each_workspace_has_its_own(mount):
    d = mount(config=counting())
    for names in ('alice/coder/s1', 'alice/other/s1', 'bob/coder/s1'):
        s = d.session(names).use()
        assert run(s, 'ls /tmp/prepared')[0] == '0'
        assert setups(s) == 1


def test_its_failure_fails_the_jobs_with_its_last_lines(mount):
    s = mount(config=counting('echo one; echo no such package; exit 3')).session().use()
    waiting = [job(s, f'j{i}').start('true') for i in range(3)]
    for j in waiting:
        assert j.exit() == 'error the sandbox\'s setup ended with 3: one;no such package'
        assert j.text('stdout') == ''
        assert j.state() == 'failed'
    assert 'no such package' in s.error()
    assert 'no such package' in progress(s)[-1]['text']
    own = Job(s, 'setup')
    assert (own.exit(), own.text('stdout'), own.text('stderr')) == ('3', 'one\nno such package\n', '')


def test_after_a_failure_the_next_job_tries_again(mount):
    s = mount(config=counting('test -e /workspace/good')).session().use()
    assert run(s, 'true')[0].startswith('error ')
    assert setups(s) == 1
    write(s / 'good', '')
    assert run(s, 'true', 'second')[0] == '0'
    assert setups(s) == 2
    assert 'setup' not in os.listdir(f'{s.inner}/jobs')


def test_its_failure_is_no_error_any_more_once_it_has_succeeded_for_another_session(mount):
    d = mount(config=counting('test -e /workspace/good'))
    s, other = d.session().use(), d.session('alice/coder/s2').use()
    assert run(s, 'true')[0].startswith('error ') and 'setup' in s.error()
    write(s / 'good', '')
    assert run(other, 'true')[0] == '0'
    assert s.error() == ''


def test_a_setup_that_hangs_ends_with_provision_timeout(mount):
    s = mount(config=counting('echo hanging; sleep 1000'), provision_timeout='1s', grace='1s').session().use()
    assert run(s, 'true')[0] == "error the sandbox's setup did not end within provision_timeout: hanging"


def test_it_can_be_followed_and_killed_like_any_job(mount):
    s = mount(config=counting('echo waiting; sleep 1000')).session().use()
    j = job(s).start('true')
    own = Job(s, 'setup')
    wait_for(lambda: os.path.exists(own.dir), what='the setup')
    own.wait_output('waiting')
    own.ctl('kill')
    assert j.exit() == "error the sandbox's setup was ended by signal 15: waiting"


@pytest.mark.concurrency
def test_a_close_ends_it_and_the_job_runs_in_the_next_sandbox(mount):
    s = mount(config=counting('test -e /workspace/quick || sleep 1000'), grace='1s').session().use()
    j = job(s).start('echo here')
    wait_for(lambda: os.path.exists(s / 'setups'), what='the setup')
    write(s / 'quick', '')
    s.ctl('close force')
    assert j.exit() == '0'
    assert setups(s) == 2


def test_a_job_of_somebody_that_is_called_setup_stays(mount):
    s = mount(config=counting()).session().use()
    j = job(s, 'setup').start('echo mine')
    assert (j.exit(), j.out()) == ('0', 'mine\n')
    assert setups(s) == 1


def test_no_limit_on_jobs_keeps_it_from_running(mount):
    s = mount(config=counting(), max_jobs=1).session().use()
    assert run(s, 'true')[0] == '0'


@pytest.mark.concurrency
@pytest.mark.parametrize('how', ['kill', 'detach'])
def test_it_is_run_once_whatever_becomes_of_the_daemon(mount, how):
    d = mount(config=counting('while ! test -e /workspace/go; do sleep 0.05; done'))
    s = d.session().use()
    j = job(s).start('echo here')
    wait_for(lambda: os.path.exists(s / 'setups'), what='the setup')
    if how == 'kill':
        d.kill()
    else:
        d.stop(expect_exit=75, by=signal.SIGUSR1)
    d.start()
    write(s / 'go', '')
    assert (j.exit(), j.text('stdout')) == ('0', 'here\n')
    assert setups(s) == 1
    d.kill()
    d.start()
    assert run(s, 'ls /tmp/prepared', 'second')[0] == '0'
    assert setups(s) == 1


def test_without_confinement_it_runs_too(mount):
    s = mount(config='[sandbox]\nsetup = echo ran >> setups\n', confine='off').session().use()
    assert run(s, 'true')[0] == '0'
    assert setups(s) == 1


def test_an_empty_one_is_refused_by_name(mount):
    d = mount.prepare(config='[sandbox]\nsetup =\n')
    code, text = mount_fails(d)
    assert code != 0 and 'setup' in text
