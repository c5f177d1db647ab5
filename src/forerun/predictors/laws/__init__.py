"""Laws: predictors of few parameters that a published formula or a rule of thumb gives."""
