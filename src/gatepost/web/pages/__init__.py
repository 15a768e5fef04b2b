"""The pages of the dashboard, one module each. A page reads what it shows, and makes markup."""
