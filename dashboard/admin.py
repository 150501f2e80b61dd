"""Users and groups in the admin: the stock pages, but their lists accept only declared filters."""

from django.contrib import admin
from django.contrib.auth.admin import GroupAdmin, UserAdmin
from django.contrib.auth.models import Group, User

from tasks.admin.read_only import DeclaredFilters


class PersonAdmin(DeclaredFilters, UserAdmin):
    pass


class PeopleAdmin(DeclaredFilters, GroupAdmin):
    pass


# Pages that the project has registered itself are kept.
for model, stock, ours in ((User, UserAdmin, PersonAdmin), (Group, GroupAdmin, PeopleAdmin)):
    if admin.site.is_registered(model) and type(admin.site.get_model_admin(model)) is stock:
        admin.site.unregister(model)
        admin.site.register(model, ours)
