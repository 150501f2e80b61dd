"""The groups of operators and their permissions, updated after every `migrate`.

Permissions of a later version are added; none that somebody granted is taken away.
"""

from typing import Any

from django.apps import AppConfig, apps
from django.db.models import Q

APPS = ("tasks", "orders", "dashboard")

SEE: frozenset[str] = frozenset()  # in addition, every group may view all our tables
OPERATE = frozenset(
    {
        "requeue_task", "recover_task", "cancel_task", "pause_queue", "configure_queue", "ship_order", "forget_command",
        "acknowledge", "direct_demo", "edit_task", "enqueue_task", "run_burst", "run_pattern", "stop_worker",
    }
)  # fmt: skip
GROUPS = {
    "Viewers": SEE,
    "Operators": OPERATE,
    "Lock administrators": OPERATE | {"signal_backend", "release_lock"},
    "Account managers": frozenset({"move_money"}),
}


def create_groups(sender: AppConfig, using: str, **kwargs: Any) -> None:
    """Receiver of `post_migrate`: waits for the last app, when the permissions of all of them exist.

    Django sends the signal only for apps that have models.
    """
    with_models = [config for config in apps.get_app_configs() if config.models_module is not None]
    if sender is not with_models[-1]:
        return
    from django.contrib.auth.models import Group, Permission

    for name, codenames in GROUPS.items():
        group, _ = Group.objects.using(using).get_or_create(name=name)
        rights = Permission.objects.using(using).filter(
            Q(codename__in=codenames) | Q(codename__startswith="view_"), content_type__app_label__in=APPS
        )
        group.permissions.add(*rights)
