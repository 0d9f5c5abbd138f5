"""What SGLang's texts say: log lines, arguments, answers, process titles."""
