"""What travels between programs and their gateway: operations, answers, bodies over HTTP."""
