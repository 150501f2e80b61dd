"""Users who log in: a client for each role."""

from django.contrib.auth.models import Group, User
from django.test import Client

PASSWORD = "correct horse"


def person(*groups: str, username: str = "anna", is_superuser: bool = False) -> User:
    """A member of staff in these groups, created once."""
    user = User.objects.filter(username=username).first() or User.objects.create_user(
        username, password=PASSWORD, is_staff=True, is_superuser=is_superuser
    )
    user.groups.set(Group.objects.filter(name__in=groups))
    return user


def client_of(*groups: str, username: str = "anna", is_superuser: bool = False) -> Client:
    """A client logged in as that person; it checks CSRF tokens only if a test asks for it."""
    client = Client()
    client.force_login(person(*groups, username=username, is_superuser=is_superuser))
    return client
