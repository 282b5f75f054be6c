// Empty: a function without a body, as in main.go, asks for an assembly file.
