CREATE DATABASE mlflow_auth OWNER mlflow;
CREATE DATABASE ledger OWNER mlflow;
