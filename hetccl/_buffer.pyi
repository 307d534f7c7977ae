"""What stands for a buffer that is not passed."""

class InPlace: ...

IN_PLACE: InPlace
