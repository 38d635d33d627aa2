# A login shell sets PATH anew; KubeRay may start Ray with one.
PATH=/opt/tocsin/venv/bin:$PATH
