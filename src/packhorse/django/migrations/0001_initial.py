from django.db import migrations

from packhorse.django.operations import ApplySteps


class Migration(migrations.Migration):
    initial = True

    operations = [ApplySteps(sqlite=1, postgres=2)]
