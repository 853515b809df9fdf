"""A shop's orders, and what a support agent can do about them: plain methods, which know nothing of agents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Orders = dict[str, dict[str, Any]]

ORDERS: Orders = {
    "A-100": {"item": "kettle", "price": 35, "status": "shipped", "days_ago": 2},
    "A-101": {"item": "lamp", "price": 60, "status": "processing", "days_ago": 0},
    "A-102": {"item": "radio", "price": 80, "status": "delivered", "days_ago": 10},
    "A-103": {"item": "chair", "price": 120, "status": "delivered", "days_ago": 45},
}


@dataclass
class Shop:
    """The orders of one customer."""

    orders: Orders

    def find_order(self, order_id: str) -> dict[str, Any]:
        """Tell what was ordered for which price, how far the order is, and how many days ago it came that far.

        Args:
            order_id: The id of the order, such as "A-100".
        """
        order = self.orders.get(order_id)
        return {"order_id": order_id} | order if order else {"error": f"There is no order {order_id}."}

    def cancel_order(self, order_id: str) -> dict[str, Any]:
        """Cancel an order.

        Args:
            order_id: The id of the order, such as "A-100".
        """
        return self._change(order_id, "cancelled")

    def refund_order(self, order_id: str) -> dict[str, Any]:
        """Pay an order back.

        Args:
            order_id: The id of the order, such as "A-100".
        """
        return self._change(order_id, "refunded")

    def _change(self, order_id: str, status: str) -> dict[str, Any]:
        if order_id not in self.orders:
            return {"error": f"There is no order {order_id}."}
        self.orders[order_id]["status"] = status
        return {"order_id": order_id, "status": status}
