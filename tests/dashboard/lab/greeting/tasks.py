"""New users are greeted once each; beside it a pattern whose code fails, and one whose sample is too small."""

from django.contrib.auth.models import User
from django.core.mail import send_mail

from tasks.patterns import register_pattern

NEW = User.objects.filter(is_active=False)


def make_users(number: int) -> None:
    User.objects.bulk_create(User(username=f"new {place}", is_active=False) for place in range(number))


def greet(user: User) -> None:
    send_mail("Welcome", "", None, ["new@example.test"])
    User.objects.filter(pk=user.pk).update(is_active=True)


def stumble(user: User) -> None:
    if user.username == "new 0":
        raise ValueError("this one is shy")
    greet(user)


PATTERNS = (
    register_pattern("greet_users", NEW, greet, description="Greets each new user.", sample=make_users),
    register_pattern("greet_and_stumble", NEW, stumble, sample=make_users),
    register_pattern("greet_too_few", NEW, greet, sample=lambda number: make_users(number - 1)),
    register_pattern("greet_without_sample", NEW, greet),
)
