# SPDX-License-Identifier: Apache-2.0
"""What `wsmfs --check` and `wsm doctor` say of containers before anything is mounted."""

import os
import re
import subprocess

import pytest

import harness
from harness import BUILD, write

pytestmark = [pytest.mark.root, pytest.mark.timeout(300)]


@pytest.fixture(name='check')
def _check(engine, workdir):
    """check(image, lines of [backend docker]): the exit code, the verdict on containers, what follows it, the sum."""
    os.mkdir(f'{workdir}/mnt')

    def run(image, backend='', host=None):
        write(f'{workdir}/config', f'[backend docker]\nhost = {host or engine.host}\n{backend}\n')
        options = f'config={workdir}/config,basedir={workdir}/base,state_dir={workdir}/state'
        words = [f'docker:{image}', f'{workdir}/mnt', '-o', options]
        done = subprocess.run([harness.WSMFS, *words, '--check'], capture_output=True, text=True, timeout=100, check=False,
                              env=harness.environment())
        assert not done.stderr, done.stderr
        line = re.search(r'^(ok|note|missing) +confinement +(.*\n(?: .*\n)?)', done.stdout, re.M)
        assert sorted(os.listdir(workdir)) == ['config', 'mnt'], 'it has made something'
        run.words = words
        return done.returncode, line[1], line[2], done.stdout.splitlines()[-1]
    return run


NO_JOB = 'A mount would work here, but no job would run in it.'


def test_check_says_that_an_engine_answers_and_whether_the_image_is_there(check, engine):
    code, verdict, text, last = check('base:1')
    assert (code, verdict, last) == (0, 'ok', 'A mount would work here.')
    assert engine.host in text and 'base:1 is there' in text
    code, verdict, text, _ = check('somewhere/else:1')
    assert (code, verdict) == (0, 'ok') and 'will be pulled' in text
    assert engine.containers() == []


def test_check_says_that_no_engine_answers(check, workdir):
    code, verdict, text, last = check('base:1', host=f'unix://{workdir}/none.sock')
    assert (code, verdict, last) == (1, 'missing', NO_JOB)
    assert f'{workdir}/none.sock' in text and 'DOCKER_HOST' in text


@pytest.mark.parametrize('image,backend,word', [('UPPER', '', 'lowercase'), ('absent:1', 'pull = never', 'docker pull'),
                                                ('', 'build = /no/where', '/no/where')])
def test_check_says_why_no_container_could_be_made(check, image, backend, word):
    code, verdict, text, last = check(image, backend)
    assert (code, verdict, last) == (1, 'missing', NO_JOB) and word in text


def test_check_says_that_a_directory_will_be_built_from(check, tmp_path):
    (tmp_path / 'Dockerfile').write_text('FROM base:1\n', encoding='ascii')
    code, verdict, text, _ = check('', f'build = {tmp_path}')
    assert (code, verdict) == (0, 'ok') and 'will be built' in text


def test_check_refuses_what_a_mount_would_refuse(check):
    code, verdict, text, last = check('base:1', 'colour = red')
    assert (code, verdict, last) == (1, 'missing', 'A mount would not work here yet.') and 'colour' in text


def test_doctor_says_the_same_of_what_is_named(check):
    def doctor():
        done = subprocess.run([f'{BUILD}/mount-helpers/wsm/wsm', 'doctor', *check.words], capture_output=True, text=True,
                              timeout=100, check=False, env=harness.environment())
        return done.returncode, done.stdout

    check('base:1')
    code, text = doctor()
    assert code == 0 and re.search('^ok +confinement .*base:1 is there$', text, re.M)
    assert text.endswith('\ndocker:base:1 would work here.\n')
    check('base:1', 'pull = never\nimage = other:1')
    code, text = doctor()
    assert code == 1 and 'named twice' in text and text.endswith('\ndocker:base:1 would not work here yet.\n')
